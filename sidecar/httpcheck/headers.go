package httpcheck

import (
	"slices"
	"strings"
)

// collected is what the header lines come to.
type collected struct {
	hosts, lengths, encodings, connections []string
	owners                                 int
	headers                                []Header // to forward, before the nominated ones are taken out
}

// collect sorts the header lines into what is judged, what is dropped and what is forwarded.
func collect(r *Request, lines []Header, rules Rules) *Violation {
	var c collected
	for _, h := range lines {
		if v := checkName(h.Name, rules); v != nil {
			return v
		}
		if v := c.take(r, h, rules); v != nil {
			return v
		}
	}
	nominated, v := c.nominated(rules)
	if v != nil {
		return v
	}
	r.Headers = c.headers
	if len(nominated) > 0 {
		r.Headers = slices.DeleteFunc(c.headers, func(h Header) bool { return slices.Contains(nominated, strings.ToLower(h.Name)) })
	}
	return c.framing(r)
}

// checkName refuses names that some readers change: a resource behind CGI or WSGI can't tell X_Fencing_Token from X-Fencing-Token.
func checkName(name string, rules Rules) *Violation {
	if isPlain(name) {
		return nil
	}
	if folded := fold(name); rules.protects(folded) || isForwarding(folded) || isOverride(folded) {
		return malformed("a header's name can be mistaken for %s", folded)
	}
	if !slices.ContainsFunc(rules.AllowedNames, func(allowed string) bool { return strings.EqualFold(allowed, name) }) {
		return malformed("a header's name has other characters than letters, digits and hyphens")
	}
	return nil
}

// fold gives a name as the most careless reader sees it.
func fold(name string) string {
	return strings.Map(func(c rune) rune {
		if c < 0x80 && isPlain(string(c)) {
			return c
		}
		return '-'
	}, strings.ToLower(name))
}

// protects says whether a header, in lower case, is one that decides over admission or framing. It must reach the resource exactly as it was read.
func (rules Rules) protects(name string) bool {
	switch name {
	case "host", "content-length", "transfer-encoding", "connection", "expect", "upgrade":
		return true
	}
	return strings.EqualFold(name, rules.TokenHeader) || strings.EqualFold(name, rules.OwnerHeader)
}

// Reaches says whether a header of this name reaches the resource as the client sent it. Only such headers may hold a key.
func Reaches(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "host", "content-length", "expect":
		return false
	}
	return isPlain(name) && !isHopByHop(name) && !isForwarding(name) && !isOverride(name)
}

// isHopByHop: headers that concern one connection only (RFC 9110, 7.6.1), in lower case.
func isHopByHop(name string) bool {
	switch name {
	case "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade":
		return true
	}
	return false
}

// isForwarding: headers that are ours to set, since a client could say anything in them.
func isForwarding(name string) bool {
	switch name {
	case "forwarded", "x-real-ip":
		return true
	}
	return strings.HasPrefix(name, "x-forwarded-") || isRewrite(name)
}

// isRewrite: headers that make some frameworks take another path than the one that was matched. Nobody's are passed on.
func isRewrite(name string) bool { return name == "x-original-url" || name == "x-rewrite-url" }

// isOverride: headers that make some frameworks take another method than the one that was matched.
func isOverride(name string) bool {
	switch name {
	case "x-http-method-override", "x-http-method", "x-method-override":
		return true
	}
	return false
}

func (c *collected) take(r *Request, h Header, rules Rules) *Violation {
	name := strings.ToLower(h.Name)
	switch name {
	case "host":
		c.hosts = append(c.hosts, h.Value)
		return nil
	case "content-length":
		c.lengths = append(c.lengths, h.Value)
		return nil
	case "transfer-encoding":
		c.encodings = append(c.encodings, h.Value)
		return nil
	case "connection":
		c.connections = append(c.connections, h.Value)
		return nil
	case "upgrade", "http2-settings":
		return &Violation{Code: CodeUpgrade, Reason: "upgrading the connection is not supported"}
	case "expect":
		if !strings.EqualFold(h.Value, "100-continue") {
			return &Violation{Code: CodeExpectation, Reason: "only the expectation 100-continue is understood"}
		}
		return nil // answered on this side
	case strings.ToLower(rules.TokenHeader):
		r.Tokens = append(r.Tokens, h.Value)
	case strings.ToLower(rules.OwnerHeader):
		if c.owners++; c.owners > 1 {
			return malformed("%s stands twice", rules.OwnerHeader)
		}
		r.Owner = h.Value
	}
	if isOverride(name) && !strings.EqualFold(h.Value, r.Method) {
		return malformed("a header asks for another method than the request line")
	}
	switch {
	case isHopByHop(name), isRewrite(name):
	case isForwarding(name):
		r.Forwarded = append(r.Forwarded, h)
	default:
		c.headers = append(c.headers, h)
	}
	return nil
}

// nominated are the names that Connection lines, all of them, declare to be of this connection only; they aren't forwarded. A protected name
// there would make a resource not see the token that was admitted.
func (c *collected) nominated(rules Rules) ([]string, *Violation) {
	var names []string
	for _, line := range c.connections {
		for option := range strings.SplitSeq(line, ",") {
			name := strings.ToLower(strings.Trim(option, " \t"))
			switch {
			case name == "":
				continue // RFC 9110, 5.6.1.2: empty list elements are ignored
			case !isToken(name):
				return nil, malformed("a Connection option isn't a token")
			case name == "upgrade":
				return nil, &Violation{Code: CodeUpgrade, Reason: "upgrading the connection is not supported"}
			case name != "connection" && rules.protects(fold(name)):
				return nil, malformed("Connection names %s, which must reach the resource", fold(name))
			}
			names = append(names, name)
		}
	}
	return names, nil
}
