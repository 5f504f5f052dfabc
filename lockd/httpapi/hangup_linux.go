package httpapi

import "golang.org/x/sys/unix"

// peerClosed says whether the peer has closed its side, or the connection is broken. Bytes that wait to be read don't hide it.
func peerClosed(fd uintptr) bool {
	const closed = unix.POLLRDHUP | unix.POLLHUP | unix.POLLERR | unix.POLLNVAL
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}} //nolint:gosec // descriptors are small numbers
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&closed != 0
}
