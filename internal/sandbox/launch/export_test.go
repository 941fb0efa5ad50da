package launch

// ShareFiles lowers the limit of open files to a workspace's share.
var ShareFiles = shareFiles
