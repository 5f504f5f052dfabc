package proxy

import (
	"sync"

	"github.com/valyala/fasthttp"
)

// Switch hands requests to the proxy of the configuration in use. Changing it drops no request: those that the old one has begun end there.
type Switch struct {
	mu      sync.RWMutex
	current *turn
}

// turn is one proxy's time in use.
type turn struct {
	*Proxy
	requests sync.WaitGroup
}

// NewSwitch returns a switch to its first proxy.
func NewSwitch(p *Proxy) *Switch { return &Switch{current: &turn{Proxy: p}} }

// enter counts a request in, so that its proxy isn't taken apart under it.
func (s *Switch) enter() *turn {
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.current.requests.Add(1)
	return s.current
}

// Current is the proxy in use.
func (s *Switch) Current() *Proxy {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.current.Proxy
}

// Swap puts another proxy into use. Drained returns when the old one has ended its last request and closed its connections.
func (s *Switch) Swap(next *Proxy) (drained func()) {
	s.mu.Lock()
	old := s.current
	s.current = &turn{Proxy: next}
	s.mu.Unlock()
	return func() {
		old.requests.Wait()
		old.Close()
	}
}

// Handle answers one request.
func (s *Switch) Handle(fast *fasthttp.RequestCtx) {
	t := s.enter()
	defer t.requests.Done()
	t.Handle(fast)
}

func (s *Switch) panicked(fast *fasthttp.RequestCtx) { s.Current().panicked(fast) }

func (s *Switch) unreadable(fast *fasthttp.RequestCtx, err error) { s.Current().unreadable(fast, err) }
