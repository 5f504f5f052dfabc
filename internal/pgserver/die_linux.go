package pgserver

import "syscall"

// dieWithParent has the kernel shut the server down at once when we die without stopping it.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
