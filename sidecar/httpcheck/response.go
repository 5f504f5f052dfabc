package httpcheck

import (
	"errors"
	"fmt"
	"strings"
)

// ErrResponse means that a response's head isn't well-formed, or could be read in two ways. The text quotes nothing of it.
var ErrResponse = errors.New("response is malformed")

func badResponse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrResponse, fmt.Sprintf(format, args...))
}

// CheckResponse judges the head of a response, from the status line to the empty line that ends it. A lenient reader repairs some
// faults, and hands on another response than the resource sent; and where it is unclear how long a body is, nobody can say that it came whole.
func CheckResponse(head []byte) error {
	line, rest, found := strings.Cut(string(head), "\r\n")
	if !found {
		return badResponse("the status line doesn't end in CRLF")
	}
	protocol, err := checkStatusLine(line)
	if err != nil {
		return err
	}
	fields, v := splitFields(rest)
	if v != nil {
		return badResponse("%s", v.Reason)
	}
	return checkResponseFraming(protocol, fields)
}

// checkStatusLine: RFC 9112, 4.
func checkStatusLine(line string) (protocol string, err error) {
	protocol, rest, _ := strings.Cut(line, " ")
	status, reason, _ := strings.Cut(rest, " ")
	switch {
	case protocol != "HTTP/1.1" && protocol != "HTTP/1.0":
		return "", badResponse("the status line has no version that is supported")
	case len(status) != 3 || strings.Trim(status, "0123456789") != "" || status[0] == '0':
		return "", badResponse("the status isn't a number from 100 to 999")
	}
	for i := range len(reason) {
		if c := reason[i]; c < ' ' && c != '\t' || c == 0x7f {
			return "", badResponse("the reason phrase has a control character")
		}
	}
	return protocol, nil
}

// checkResponseFraming: RFC 9112, 6.
func checkResponseFraming(protocol string, fields []Header) error {
	var lengths, encodings []string
	for _, h := range fields {
		switch strings.ToLower(h.Name) {
		case "content-length":
			lengths = append(lengths, h.Value)
		case "transfer-encoding":
			encodings = append(encodings, h.Value)
		}
	}
	switch {
	case len(encodings) > 0 && len(lengths) > 0:
		return badResponse("both Content-Length and Transfer-Encoding")
	case len(encodings) > 1 || len(encodings) == 1 && !strings.EqualFold(encodings[0], "chunked"):
		return badResponse("the only transfer coding that is understood is chunked, once")
	case len(encodings) == 1 && protocol != "HTTP/1.1":
		return badResponse("Transfer-Encoding needs HTTP/1.1")
	case len(lengths) > 1:
		return badResponse("Content-Length stands twice")
	case len(lengths) == 1:
		if _, ok := contentLength(lengths[0]); !ok {
			return badResponse("Content-Length isn't a number")
		}
	}
	return nil
}
