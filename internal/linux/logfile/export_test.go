package logfile

// LeftOutEvery is leftOutEvery.
const LeftOutEvery = leftOutEvery
