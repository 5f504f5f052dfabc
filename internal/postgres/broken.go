package postgres

import (
	"errors"
	"io"
	"syscall"

	"github.com/jackc/puddle/v2"
)

// isBrokenConnection recognises a connection that died under the call. pgx reports
// these without a type of its own.
func isBrokenConnection(err error) bool {
	for _, broken := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE, puddle.ErrClosedPool} {
		if errors.Is(err, broken) {
			return true
		}
	}
	return false
}
