package faultnet

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// Pipeline passes connections on to a PostgreSQL server, and stops one between two messages of its client: the server has done then whatever came before, and
// waits. Clients must send the text of each statement with it (pgx's query mode "exec").
type Pipeline struct {
	upstream string
	listener net.Listener

	mu      sync.Mutex
	trap    *Trap
	links   map[*link]struct{}
	refuses bool
}

// Message is what a client is about to send.
type Message struct {
	Kind byte // as in the protocol: 'P' brings a statement, 'S' ends the pipeline and commits
	// Sent are the statements of this pipeline so far, this one included.
	Sent []string
}

// Trap waits for a message of any connection, the first one that matches.
type Trap struct {
	match  func(Message) bool
	passes bool
	sprung chan struct{}
	goOn   chan struct{}
	freed  sync.Once
}

// Sprung is closed when the message has come.
func (t *Trap) Sprung() <-chan struct{} { return t.sprung }

// Release lets the connection go on.
func (t *Trap) Release() { t.freed.Do(func() { close(t.goOn) }) }

// link is one connection with its two halves.
type link struct {
	client, server net.Conn
	mute           chan struct{} // while it isn't nil: answers wait for its end
}

// NewPipeline starts a proxy on a free port before the server at upstream (host:port). It ends with the test.
func NewPipeline(t testingT, upstream string) *Pipeline {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatalf("start proxy: %v", err)
	}
	p := &Pipeline{upstream: upstream, listener: listener, links: map[*link]struct{}{}}
	t.Cleanup(func() {
		_ = listener.Close()
		p.Cut()
	})
	go p.accept()
	return p
}

// Addr is where the proxy listens.
func (p *Pipeline) Addr() string { return p.listener.Addr().String() }

// StopBefore sets a trap before a message: it doesn't reach the server until the trap is released. There is one trap at a time.
func (p *Pipeline) StopBefore(match func(Message) bool) *Trap { return p.set(match, false) }

// MuteFrom sets a trap behind a message: it reaches the server, and nothing that the server says afterwards reaches the client.
func (p *Pipeline) MuteFrom(match func(Message) bool) *Trap { return p.set(match, true) }

func (p *Pipeline) set(match func(Message) bool, passes bool) *Trap {
	t := &Trap{match: match, passes: passes, sprung: make(chan struct{}), goOn: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trap = t
	return t
}

// Cut closes all connections, those that are stopped too, and refuses new ones until Mend.
func (p *Pipeline) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = true
	for l := range p.links {
		_ = l.client.Close()
		_ = l.server.Close()
	}
}

// Mend lets new connections pass again.
func (p *Pipeline) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = false
}

func (p *Pipeline) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.serve(client)
	}
}

func (p *Pipeline) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", p.upstream) //nolint:noctx // it ends with the test
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	l := &link{client: client, server: server}
	p.mu.Lock()
	refuses := p.refuses
	if !refuses {
		p.links[l] = struct{}{}
	}
	p.mu.Unlock()
	if refuses {
		return
	}
	defer func() {
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	go func() {
		_ = p.answers(l)
		_ = client.Close()
		_ = server.Close()
	}()
	_ = p.requests(l)
}

// answers passes on what the server says, while the link isn't muted.
func (p *Pipeline) answers(l *link) error {
	buffer := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buffer)
		p.mu.Lock()
		mute := l.mute
		p.mu.Unlock()
		if mute != nil {
			<-mute
		}
		if n > 0 {
			if _, err := l.client.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

const (
	protocol3 = 3 << 16 // what a start-up message begins with
	parse     = 'P'
	syncKind  = 'S'
	largest   = 1 << 24
)

var errTooLarge = errors.New("a message is too large")

// requests passes on what the client says, message by message.
func (p *Pipeline) requests(l *link) error {
	in := bufio.NewReader(l.client)
	for { // start-up: a request for encryption may come first
		message, err := readMessage(in, nil)
		if err != nil {
			return err
		}
		if _, err := l.server.Write(message); err != nil {
			return err
		}
		if len(message) >= 8 && binary.BigEndian.Uint32(message[4:])>>16 == protocol3>>16 {
			break
		}
	}
	var sent []string
	for {
		kind, err := in.ReadByte()
		if err != nil {
			return err
		}
		message, err := readMessage(in, []byte{kind})
		if err != nil {
			return err
		}
		if kind == parse {
			sent = append(sent, statement(message))
		}
		if err := p.pass(l, Message{Kind: kind, Sent: sent}, message); err != nil {
			return err
		}
		if kind == syncKind {
			sent = nil
		}
	}
}

// pass hands one message on, unless a trap is set for it.
func (p *Pipeline) pass(l *link, m Message, message []byte) error {
	p.mu.Lock()
	t := p.trap
	if t != nil && t.match(m) {
		p.trap = nil
		if t.passes {
			l.mute = t.goOn
		}
	} else {
		t = nil
	}
	p.mu.Unlock()
	if t != nil && !t.passes {
		close(t.sprung)
		<-t.goOn
	}
	_, err := l.server.Write(message)
	if t != nil && t.passes {
		close(t.sprung)
	}
	return err
}

// readMessage reads a length and as many bytes, and returns it all behind head.
func readMessage(in io.Reader, head []byte) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n < 4 || n > largest {
		return nil, errTooLarge
	}
	message := append(append(head, length[:]...), make([]byte, n-4)...)
	_, err := io.ReadFull(in, message[len(head)+4:])
	return message, err
}

// statement is the text in a Parse message: its name comes first.
func statement(message []byte) string {
	_, rest, _ := bytes.Cut(message[5:], []byte{0})
	text, _, _ := bytes.Cut(rest, []byte{0})
	return string(text)
}
