package robustness

import (
	"context"
	"fmt"
	"strings"
	"sync"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// link is the way of one replica's connections to the store, to be cut and delayed.
type link struct {
	mu    sync.Mutex // one change at a time
	proxy *toxiproxy.Proxy
}

// newLink listens on a port of its own for connections to the store at upstream (host:port).
func newLink(name, upstream string) (*link, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &link{proxy: toxiproxy.NewProxy(server, name, "127.0.0.1:0", upstream)}
	if err := l.proxy.Start(); err != nil {
		return nil, fmt.Errorf("proxy for %s: %w", name, err)
	}
	return l, nil
}

// address is host:port, where the replica connects to.
func (l *link) address() string { return l.proxy.Listen }

func (l *link) spoil(toxics ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, toxic := range toxics {
		if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			return fmt.Errorf("spoil the link to the store: %w", err)
		}
	}
	return nil
}

// cut ends every connection, also new ones: at once towards the store, where a statement may just have been read or not, and what
// the store has answered is lost.
func (l *link) cut() error {
	return l.spoil(
		`{"name":"cut up","type":"timeout","stream":"upstream","attributes":{"timeout":1}}`,
		`{"name":"cut down","type":"timeout","stream":"downstream","attributes":{"timeout":1}}`)
}

// silence loses every answer of the store without ending the connection: the statements arrive.
func (l *link) silence() error {
	return l.spoil(`{"name":"silence","type":"timeout","stream":"downstream","attributes":{"timeout":0}}`)
}

// delay makes every answer late, by some milliseconds or by hundreds.
func (l *link) delay(millis, jitter int) error {
	return l.spoil(fmt.Sprintf(`{"name":"delay","type":"latency","stream":"downstream","attributes":{"latency":%d,"jitter":%d}}`, millis, jitter))
}

// mend lets everything pass again. Connections that were silenced end.
func (l *link) mend(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxy.Toxics.ResetToxics(ctx)
}

func (l *link) close() { l.proxy.Stop() }
