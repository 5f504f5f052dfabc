package httpcheck

import (
	"net/netip"
	"strconv"
	"strings"
)

// framing is RFC 9112, section 6 (exactly one way to tell where the body ends) and 3.2 (exactly one valid Host).
func (c *collected) framing(r *Request) *Violation {
	switch {
	case len(c.hosts) != 1:
		return malformed("Host stands %d times, want once", len(c.hosts))
	case !validHost(c.hosts[0]):
		return malformed("Host isn't a host with an optional port")
	case len(c.encodings) > 0 && len(c.lengths) > 0:
		return malformed("both Content-Length and Transfer-Encoding")
	case len(c.encodings) > 1 || len(c.encodings) == 1 && !strings.EqualFold(c.encodings[0], "chunked"):
		return malformed("the only transfer coding that is understood is chunked, once")
	case len(c.lengths) > 1:
		return malformed("Content-Length stands twice")
	case len(c.lengths) == 1:
		n, ok := contentLength(c.lengths[0])
		if !ok {
			return malformed("Content-Length isn't a number")
		}
		r.ContentLength = n
	}
	r.Host = c.hosts[0]
	r.Chunked = len(c.encodings) > 0
	r.Framed = r.Chunked || len(c.lengths) > 0
	return nil
}

// contentLength: RFC 9110, 8.6: digits, which may have leading zeros.
func contentLength(text string) (int64, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// validHost is a deliberately small part of RFC 3986, 3.2.2: names, IPv4, bracketed IPv6, an optional port.
func validHost(host string) bool {
	name, port := host, "80"
	if end := strings.IndexByte(host, ']'); strings.HasPrefix(host, "[") && end > 0 {
		address, err := netip.ParseAddr(host[1:end])
		if err != nil || !address.Is6() || address.Zone() != "" {
			return false
		}
		rest := host[end+1:]
		if rest == "" {
			return true
		}
		name, port = "v6", strings.TrimPrefix(rest, ":")
		if port == rest {
			return false
		}
	} else if before, after, found := strings.Cut(host, ":"); found {
		name, port = before, after
	}
	for i := range len(name) {
		if c := name[i]; !isAlphanumeric(c) && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	if strings.Trim(port, "0123456789") != "" {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return name != "" && err == nil && n > 0
}
