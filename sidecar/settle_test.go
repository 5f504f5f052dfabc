package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// worker is a resource that answers 5 in some way, and lets it take effect when it is told to.
type worker struct {
	*slowResource
	answer func(w http.ResponseWriter) (rest string)
}

func (k *worker) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if request.Header.Get("X-Fencing-Token") != "5" {
		k.slowResource.ServeHTTP(w, request)
		return
	}
	rest := k.answer(w)
	_ = http.NewResponseController(w).Flush()
	close(k.arrived["5"])
	<-k.held["5"]
	k.mu.Lock()
	k.effects = append(k.effects, "5")
	k.mu.Unlock()
	_, _ = io.WriteString(w, rest)
}

// answers writes a status and the beginning of a body.
func answers(status int, body, rest string) func(http.ResponseWriter) string {
	return func(w http.ResponseWriter) string {
		w.Header().Set("Content-Length", "4")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		return rest
	}
}

// A request is in flight until its answer has come to its end, and longer where its status says that somebody gave up on whoever does the work. What is settled sooner, for one
// reason or the other, lets the next one overtake it: the same test sees that.
func TestRequestIsInFlightUntilItsAnswerSaysThatItIsOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer   func(http.ResponseWriter) string
		statuses string // for the guard, where they aren't the default
		settled  bool   // before 5 takes effect
	}{
		"the body isn't whole":                       {answer: answers(http.StatusOK, "do", "ne")},
		"control: the body ends before the work":     {answer: answers(http.StatusOK, "done", ""), settled: true},
		"an inner proxy gave up":                     {answer: answers(http.StatusGatewayTimeout, "late", "")},
		"control: 504 counts as settled":             {answer: answers(http.StatusGatewayTimeout, "late", ""), statuses: "202, 408, 502, 503", settled: true},
		"the job goes on":                            {answer: answers(http.StatusAccepted, "soon", "")},
		"control: 202 counts as settled":             {answer: answers(http.StatusAccepted, "soon", ""), statuses: "504", settled: true},
		"an inner proxy's body isn't whole, and 504": {answer: answers(http.StatusGatewayTimeout, "la", "te")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := &worker{slowResource: newSlowResource("5"), answer: c.answer}
			config := func(id string) string {
				text := strings.NewReplacer("wait: 3s", "wait: 500ms", "response_timeout: 2s", "response_timeout: 30s").Replace(effectsText(id, "then: hold"))
				if c.statuses != "" {
					text = strings.Replace(text, "unsettled: { then: hold }", "unsettled: { then: hold }\n    unsettled_status: ["+c.statuses+"]", 1)
				}
				return text
			}
			p := startPairBefore(t, k.slowResource, k, config("one"), config("two"))
			old := p.one.writeLater(t, "5")
			<-k.arrived["5"]
			if c.settled {
				<-old
				p.two.eventually(t, "6 goes past it", func() bool {
					status, _ := p.two.write(t, "6")
					return status == http.StatusOK
				})
				close(k.held["5"])
				require.Eventually(t, func() bool { return len(k.done()) == 2 }, patience, pollPause)
				require.Equal(t, []string{"6", "5"}, k.done())
				return
			}
			for range 3 {
				status, body := p.two.write(t, "6")
				require.Equal(t, http.StatusServiceUnavailable, status, body)
				require.Contains(t, body, "FENCE_BUSY")
			}
			close(k.held["5"])
			<-old
			require.Eventually(t, func() bool { return len(k.done()) == 1 }, patience, pollPause)
			require.Equal(t, []string{"5"}, k.done())
		})
	}
}
