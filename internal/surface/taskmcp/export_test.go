package taskmcp

// MaxOfTask is how many sessions one task may have.
const MaxOfTask = maxOfTask
