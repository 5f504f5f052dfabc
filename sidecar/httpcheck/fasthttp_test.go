package httpcheck

import (
	"bufio"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
)

// throughFasthttp judges a head as the sidecar does: fasthttp reads it, and Check gets the parts that fasthttp keeps.
func throughFasthttp(raw string) (r Request, parsed bool, violation *Violation) {
	var header fasthttp.RequestHeader
	if err := header.Read(bufio.NewReader(strings.NewReader(raw))); err != nil {
		return Request{}, false, nil
	}
	r, violation = Check(Head{
		Method: string(header.Method()), Target: string(header.RequestURI()), Protocol: string(header.Protocol()), Fields: header.RawHeaders(),
	}, rules)
	return r, true, violation
}

// What fasthttp lets through must still show its fault in the raw header block that it keeps. A head that ends early (H17) shows it as a line without CR.
func TestFaultsAreSeenInWhatFasthttpKeeps(t *testing.T) {
	t.Parallel()
	left := 0
	for _, group := range refused {
		for _, head := range group.heads {
			_, parsed, violation := throughFasthttp(head)
			if !parsed {
				continue
			}
			if strings.Contains(head, "\r\n\r\nGET /smug") {
				continue // for fasthttp that is a second request, as it should be
			}
			left++
			require.NotNil(t, violation, "%s: fasthttp reads %q and nobody refuses it", group.hazard, head)
		}
	}
	require.Greater(t, left, 80, "most faults are left to Check")
}

func TestAdmissibleHeadsComeThroughFasthttpUnchanged(t *testing.T) {
	t.Parallel()
	for _, head := range admitted() {
		want, violation := check(t, head, rules)
		require.Nil(t, violation)
		if !strings.HasSuffix(head, "\r\n\r\n") {
			head += "\r\n"
		}
		got, parsed, violation := throughFasthttp(head)
		require.True(t, parsed, "%q", head)
		require.Nil(t, violation, "%q", head)
		require.Equal(t, want, got, "%q", head)
	}
}
