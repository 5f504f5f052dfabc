package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"fenceline/lockd/lock"
)

// ErrRefused means that etcd refuses what lockd asks for as a matter of principle: wrong password, missing permission. Waiting doesn't mend it.
var ErrRefused = errors.New("etcd refuses lockd")

// flight knows whether a call has left for a server. What never left hasn't happened, and that is the whole difference between "unavailable"
// and "unknown outcome".
type flight struct{ left atomic.Bool }

type flightKey struct{}

func withFlight(ctx context.Context) (context.Context, *flight) {
	f := &flight{}
	return context.WithValue(ctx, flightKey{}, f), f
}

// flights marks calls as they leave, and tells when a connection is lost. It implements stats.Handler: gRPC tells it before an answer or a
// failure of the call can be seen.
type flights struct{ lost func() }

func (flights) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (flights) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, leaving := event.(*stats.OutHeader); !leaving {
		return
	}
	if f, ok := ctx.Value(flightKey{}).(*flight); ok {
		f.left.Store(true)
	}
}

func (flights) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (f flights) HandleConn(_ context.Context, event stats.ConnStats) {
	if _, over := event.(*stats.ConnEnd); over {
		f.lost()
	}
}

// code is the kind of an error of etcd's, of gRPC's or of a context.
func code(err error) codes.Code {
	if etcd, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return etcd.Code()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return status.Code(err)
}

// unread is the error of a call that changes nothing.
func unread(err error) error {
	if isRefusal(err) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
}

// unwritten is the error of a call that would have changed something. Etcd's own refusals come before anything is done, or
// instead; every other error leaves open what happened, if the call has left at all.
func unwritten(err error, f *flight) error {
	switch {
	case isRefusal(err):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case f.left.Load() && !errors.Is(err, rpctypes.ErrNoSpace) && !errors.Is(err, rpctypes.ErrTooManyRequests):
		return fmt.Errorf("%w: %w", lock.ErrUnknownOutcome, err)
	}
	return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
}

// isRefusal recognises a defect of the deployment, or of ours.
func isRefusal(err error) bool {
	switch code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition, codes.Unimplemented, codes.OutOfRange:
		return true
	default:
		return false
	}
}
