package resource

import (
	"context"
	"fmt"
	"net/url"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"fenceline/internal/httpserver"
	"fenceline/internal/strictjson"
	"fenceline/lockd/lock"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
)

// call is one request on its way.
type call struct {
	*fasthttp.RequestCtx
	ctx     context.Context // lives as long as the call
	traceID string
	route   string        // the name of its route
	id      string        // what stands in the path for {id}
	holder  payout.Holder // as far as it has been read; for the log
	key     string        // the idempotency key, once it has been read
}

// header returns the value of a header that must stand there exactly once.
func (c *call) header(name string) (string, error) {
	values := c.Request.Header.PeekAll(name)
	if len(values) != 1 {
		return "", fmt.Errorf("%w: the header %s stands %d times, want once", payout.ErrInvalid, name, len(values))
	}
	return string(values[0]), nil
}

// text returns a header with an opaque text that valid accepts.
func (c *call) text(name string, valid func(name, text string) error) (string, error) {
	value, err := c.header(name)
	if err != nil {
		return "", err
	}
	return value, valid(name, value)
}

// readOwner reads who writes.
func (c *call) readOwner() (err error) {
	c.holder.Owner, err = c.text(payapi.HeaderOwner, payout.ValidOwner)
	return err
}

// readHolder reads who writes and under which grant. The token's grammar is lockd's.
func (c *call) readHolder() error {
	values := c.Request.Header.PeekAll(payapi.HeaderToken)
	if len(values) != 1 {
		return fmt.Errorf("%w: it stands %d times, want once", lock.ErrInvalidToken, len(values))
	}
	token, err := lock.ParseToken(string(values[0]))
	if err != nil {
		return err
	}
	c.holder.Token = token
	return c.readOwner()
}

// readWrite reads what comes with every write to a payout: the holder and the request's key.
func (c *call) readWrite() (err error) {
	if err := c.readHolder(); err != nil {
		return err
	}
	c.key, err = c.text(payapi.HeaderIdempotencyKey, payout.ValidText)
	return err
}

// pathID reads the id in the path.
func (c *call) pathID(name string) (uuid.UUID, error) { return payout.ParseID(name, c.id) }

// decode reads the body strictly.
func (c *call) decode(v any) error {
	if err := strictjson.Decode(c.PostBody(), v); err != nil {
		return fmt.Errorf("%w: %w", payout.ErrInvalid, err)
	}
	return nil
}

// query reads the query string: each parameter is known and stands there at most once. An empty value is as good as none.
func (c *call) query(known ...string) (url.Values, error) {
	values, err := httpserver.Query(c.RequestCtx, known)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", payout.ErrInvalid, err)
	}
	return values, nil
}
