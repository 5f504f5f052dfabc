// Package httpcheck judges whether a request is admissible at all, from its raw head, and takes it apart into the pieces from which it
// is built anew. Whatever RFC 9110 and RFC 9112 call malformed, and whatever two readers could read in two ways, is refused: what is matched
// must be, byte for byte, what is forwarded.
package httpcheck

import (
	"fmt"
	"strings"
)

// Head is a request's head as it came over the wire.
type Head struct {
	Method   string
	Target   string // request-target as sent
	Protocol string // such as HTTP/1.1
	Fields   []byte // the header lines with their line ends, with or without the empty line at the end
}

// Rules are the parts of the configuration that matter here.
type Rules struct {
	TokenHeader string // canonical names
	OwnerHeader string
	// AllowedNames are header names that may be sent although they have other characters than letters, digits and
	// hyphens. A name that can be mistaken for a protected one is refused all the same.
	AllowedNames []string
}

// Header is one header line to forward, name and value as sent.
type Header struct{ Name, Value string }

// Request is an admissible request in checked parts.
type Request struct {
	Method  string
	Path    string // with its leading slash, byte for byte as sent; * only for OPTIONS
	Query   string // raw, without the question mark
	Target  string // what is forwarded: path, and query if there is one
	Host    string
	Headers []Header // to forward, in order; without Host, framing, hop-by-hop and forwarding headers
	// Forwarded are the X-Forwarded-* headers, Forwarded and X-Real-IP, as sent: what the peer says of where the request came from. They are to be
	// forwarded only when the peer is believed.
	Forwarded []Header
	Tokens    []string // every value of the token header, as sent
	Owner     string
	// Framed says whether the request announced a body, even an empty one.
	Framed bool
	// Chunked says that the body comes in chunks; otherwise its length is ContentLength bytes, 0 without a body.
	Chunked       bool
	ContentLength int64
}

// Values are all values of a header to forward, whatever its case.
func (r Request) Values(name string) []string {
	var out []string
	for _, h := range r.Headers {
		if strings.EqualFold(h.Name, name) {
			out = append(out, h.Value)
		}
	}
	return out
}

// Violation says why a request is refused. Its text quotes nothing of the request.
type Violation struct {
	Code   string // of the answers' table
	Reason string
}

// Error gives code and reason.
func (v *Violation) Error() string { return v.Code + ": " + v.Reason }

// Codes that a head can be refused with.
const (
	CodeMalformed   = "MALFORMED_REQUEST"
	CodeMethod      = "METHOD_NOT_ALLOWED"
	CodeExpectation = "EXPECTATION_FAILED"
	CodeUpgrade     = "UPGRADE_NOT_SUPPORTED"
	CodeVersion     = "VERSION_NOT_SUPPORTED"
)

func malformed(format string, args ...any) *Violation {
	return &Violation{Code: CodeMalformed, Reason: fmt.Sprintf(format, args...)}
}

// Check takes the head apart or says why it can't be admitted. The Request shares no memory with the head's Fields, and
// is of no use when there is a Violation.
func Check(head Head, rules Rules) (Request, *Violation) {
	r := Request{Method: head.Method}
	if v := checkMethod(head.Method); v != nil {
		return Request{}, v
	}
	if v := checkTarget(head.Target, &r); v != nil {
		return Request{}, v
	}
	lines, v := splitFields(string(head.Fields))
	if v != nil {
		return Request{}, v
	}
	if v := collect(&r, lines, rules); v != nil {
		return Request{}, v
	}
	// Last, so that a malformed head is called malformed whatever version it claims.
	if v := checkProtocol(head.Protocol, r.Chunked); v != nil {
		return Request{}, v
	}
	return r, nil
}

// checkMethod: RFC 9110, 9.1. CONNECT would make a tunnel that nothing can be checked in; TRACE echoes the request, token
// included. Methods are case-sensitive, but a resource may not know that.
func checkMethod(method string) *Violation {
	switch {
	case strings.EqualFold(method, "CONNECT"):
		return &Violation{Code: CodeUpgrade, Reason: "CONNECT is not supported"}
	case strings.EqualFold(method, "TRACE"):
		return &Violation{Code: CodeMethod, Reason: "TRACE is not allowed"}
	case !isToken(method) || len(method) > maxMethodLength:
		return malformed("the method isn't a token")
	}
	return nil
}

// maxMethodLength, in bytes: the longest registered one is UPDATEREDIRECTREF.
const maxMethodLength = 32

// checkProtocol: RFC 9112, 2.3. HTTP/1.0 is refused too: it has no chunks, so a response of unknown length would end with the
// connection and nobody could tell a whole one from a truncated one.
func checkProtocol(protocol string, chunked bool) *Violation {
	if protocol == "HTTP/1.1" {
		return nil
	}
	version, ok := strings.CutPrefix(protocol, "HTTP/")
	if !ok || len(version) != 3 || !isDigit(version[0]) || version[1] != '.' || !isDigit(version[2]) {
		return malformed("the request line has no protocol version")
	}
	if chunked { // RFC 9112, 6.1: faulty framing below HTTP/1.1
		return malformed("Transfer-Encoding needs HTTP/1.1")
	}
	return &Violation{Code: CodeVersion, Reason: "only HTTP/1.1 is supported"}
}
