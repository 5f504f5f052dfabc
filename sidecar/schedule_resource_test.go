package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// orderedResource checks what it is sent: for every account, nothing while something lower is under way, and nothing lower afterwards. A request can be made to stand still
// in it.
type orderedResource struct {
	mu       sync.Mutex
	accounts map[string]*history
	holds    map[string]*hold // by account and token
	wrong    []string
}

type history struct {
	running  []int64
	highest  int64
	arrivals map[int64]int
}

// hold is a request that stands still.
type hold struct {
	stage   insideStage
	reached chan struct{}
	goOn    chan struct{}
	once    sync.Once
}

func (h *hold) release() { h.once.Do(func() { close(h.goOn) }) }

func newOrderedResource() *orderedResource {
	return &orderedResource{accounts: map[string]*history{}, holds: map[string]*hold{}}
}

func (r *orderedResource) hold(account, token string, stage insideStage) *hold {
	h := &hold{stage: stage, reached: make(chan struct{}), goOn: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds[account+" "+token] = h
	return h
}

func (r *orderedResource) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	account, header := strings.TrimPrefix(request.URL.Path, "/accounts/"), request.Header.Get("X-Fencing-Token")
	token, _ := strconv.ParseInt(header, 10, 64)
	h := r.begin(account, token)
	defer r.end(account, token)
	if h != nil && h.stage == arrived {
		close(h.reached)
		<-h.goOn
	}
	_, _ = io.Copy(io.Discard, request.Body)
	w.Header().Set("Content-Length", "4")
	_, _ = io.WriteString(w, "do")
	if h != nil && h.stage == halfAnswered {
		_ = http.NewResponseController(w).Flush()
		close(h.reached)
		<-h.goOn
	}
	_, _ = io.WriteString(w, "ne")
}

func (r *orderedResource) begin(account string, token int64) *hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.accounts[account]
	if a == nil {
		a = &history{arrivals: map[int64]int{}}
		r.accounts[account] = a
	}
	for _, other := range a.running {
		if other < token {
			r.wrong = append(r.wrong, fmt.Sprintf("account %s: %d came while %d was under way", account, token, other))
		}
	}
	if token < a.highest {
		r.wrong = append(r.wrong, fmt.Sprintf("account %s: %d came after %d", account, token, a.highest))
	}
	if a.arrivals[token]++; a.arrivals[token] > 1 {
		r.wrong = append(r.wrong, fmt.Sprintf("account %s: %d came %d times", account, token, a.arrivals[token]))
	}
	a.highest, a.running = max(a.highest, token), append(a.running, token)
	return r.holds[account+" "+strconv.FormatInt(token, 10)]
}

func (r *orderedResource) end(account string, token int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.accounts[account]
	i := slices.Index(a.running, token)
	a.running = slices.Delete(a.running, i, i+1)
}

// idle waits until nothing of the account is under way.
func (r *orderedResource) idle(t *testing.T, account string) error {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		r.mu.Lock()
		running := len(r.accounts[account].running)
		r.mu.Unlock()
		if running == 0 {
			return nil
		}
		wait(t, pollPause)
	}
	return errors.New("the resource is still at work")
}

// saw compares how often 5 came with what it should be.
func (r *orderedResource) saw(account string, forwarded bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.accounts[account].arrivals[5]; (n > 0) != forwarded {
		return fmt.Errorf("5 came %d times, forwarded: %t", n, forwarded)
	}
	return nil
}

func (r *orderedResource) violations() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.wrong)
}

func TestResourceOfTheSchedulesNoticesWhatIsOutOfOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		play func(r *orderedResource)
		want string
	}{
		"a newer one comes while an older one is under way": {func(r *orderedResource) { r.begin("a", 5); r.begin("a", 6) }, "6 came while 5 was under way"},
		"an older one comes after a newer one": {func(r *orderedResource) {
			r.begin("a", 6)
			r.end("a", 6)
			r.begin("a", 5)
		}, "5 came after 6"},
		"one comes twice": {func(r *orderedResource) { r.begin("a", 5); r.begin("a", 5) }, "5 came 2 times"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newOrderedResource()
			r.begin("b", 9)
			c.play(r)
			require.Equal(t, []string{"account a: " + c.want}, r.violations())
		})
	}
}
