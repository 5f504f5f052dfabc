package httpcheck

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestResponsesThatCouldBeReadInTwoWaysAreRefused(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, head := range map[string]string{
		"nothing":                        "",
		"no status line":                 "garbage\r\n\r\n",
		"no line end":                    "HTTP/1.1 200 OK",
		"other version":                  "HTTP/2 200 OK\r\n\r\n",
		"lower case":                     "http/1.1 200 OK\r\n\r\n",
		"status of two digits":           "HTTP/1.1 20 OK\r\n\r\n",
		"status of four digits":          "HTTP/1.1 2000 OK\r\n\r\n",
		"status that is none":            "HTTP/1.1 2x0 OK\r\n\r\n",
		"status below 100":               "HTTP/1.1 099 OK\r\n\r\n",
		"signed status":                  "HTTP/1.1 +20 OK\r\n\r\n",
		"two spaces":                     "HTTP/1.1  200 OK\r\n\r\n",
		"control in reason":              "HTTP/1.1 200 O\x00K\r\n\r\n",
		"line end of the status line":    "HTTP/1.1 200 OK\nX-A: 1\r\n\r\n",
		"bare LF":                        ok + "X-A: 1\nX-B: 2\r\n\r\n",
		"bare CR":                        ok + "X-A: 1\rX-B: 2\r\n\r\n",
		"ends early":                     ok + "X-A: 1\n\nX-B: 2\r\n\r\n",
		"folded":                         ok + "X-A: 1\r\n 2\r\n\r\n",
		"space before colon":             ok + "Content-Length : 0\r\n\r\n",
		"space in name":                  ok + "X A: 1\r\n\r\n",
		"no name":                        ok + ": 1\r\n\r\n",
		"no colon":                       ok + "X-A\r\n\r\n",
		"NUL":                            ok + "X-A: \x00\r\n\r\n",
		"length and chunks (H70)":        ok + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
		"chunks and length":              ok + "transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
		"two lengths":                    ok + "Content-Length: 3\r\nContent-Length: 3\r\n\r\n",
		"list of lengths":                ok + "Content-Length: 3, 3\r\n\r\n",
		"signed length":                  ok + "Content-Length: +3\r\n\r\n",
		"empty length":                   ok + "Content-Length:\r\n\r\n",
		"length of 2^64":                 ok + "Content-Length: 18446744073709551616\r\n\r\n",
		"other coding":                   ok + "Transfer-Encoding: gzip, chunked\r\n\r\n",
		"coding that looks like chunked": ok + "Transfer-Encoding: xchunked\r\n\r\n",
		"chunked twice":                  ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
		"identity":                       ok + "Transfer-Encoding: identity\r\n\r\n",
		"chunks below 1.1":               "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"more than a head":               ok + "\r\nHTTP/1.1 200 OK\r\n\r\n",
	} {
		require.ErrorIs(t, CheckResponse([]byte(head)), ErrResponse, name)
	}
}

func TestOrdinaryResponsesPass(t *testing.T) {
	t.Parallel()
	for _, head := range []string{
		"HTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200\r\nContent-Length: 003\r\n\r\n",
		"HTTP/1.0 404 Nicht gefunden \xe4\r\nX-A:\t1 \r\nX_odd.name~: \xff\r\n\r\n",
		"HTTP/1.1 999 Odd\r\nTransfer-Encoding: Chunked\r\nTrailer: X\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n",
		"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\r\n",
	} {
		require.NoError(t, CheckResponse([]byte(head)), "%q", head)
	}
}

func TestRefusalsOfResponsesQuoteNothing(t *testing.T) {
	t.Parallel()
	for _, head := range []string{"SECRET", "SECRET\r\n\r\n", "HTTP/1.1 SECRET\r\n\r\n", "HTTP/1.1 200 OK\r\nSECRET\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: SECRET\r\n\r\n"} {
		err := CheckResponse([]byte(head))
		require.Error(t, err)
		require.False(t, strings.Contains(err.Error(), "SECRET"), err)
	}
}
