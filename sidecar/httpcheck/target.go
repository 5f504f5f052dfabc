package httpcheck

import "strings"

// checkTarget takes the request-target apart (RFC 9112, 3.2). Only the origin form is accepted, and * with OPTIONS; and only spellings of a path that
// every reader resolves to the same path: no dot segments, no empty segments, no encoded slash, backslash or NUL, nothing encoded that needn't be.
func checkTarget(target string, r *Request) *Violation {
	if target == "*" && r.Method == "OPTIONS" {
		r.Path, r.Target = target, target
		return nil
	}
	if !strings.HasPrefix(target, "/") {
		return malformed("the request-target must be a path")
	}
	path, query, _ := strings.Cut(target, "?")
	if v := checkPath(path); v != nil {
		return v
	}
	if v := checkQuery(query); v != nil {
		return v
	}
	r.Path, r.Query, r.Target = path, query, target
	return nil
}

// checkPath: RFC 3986, 3.3, without the semicolon: what follows it in a segment is part of the path for one reader and a
// parameter for another.
func checkPath(path string) *Violation {
	for i := range len(path) {
		if c := path[i]; !isUnreserved(c) && strings.IndexByte("/%!$&'()*+,=:@", c) < 0 {
			return malformed("the path has a character that isn't allowed or is read in different ways")
		}
	}
	if v := checkEscapes(path, checkPathEscape); v != nil {
		return v
	}
	segments := strings.Split(path[1:], "/")
	for i, segment := range segments {
		switch {
		case segment == "" && i < len(segments)-1:
			return malformed("the path has an empty segment")
		case segment == "." || segment == "..":
			return malformed("the path has a dot segment")
		}
	}
	return nil
}

// checkPathEscape: what is encoded must need it (RFC 3986, 2.3). So an encoded dot segment, and a second spelling of a literal segment, can't be written; and
// a key that is taken from a segment has one text whichever case its hexadecimal digits have. Slash, backslash and semicolon are separators for some
// readers only after they have decoded the path.
func checkPathEscape(c byte) *Violation {
	switch {
	case c < ' ' || c == 0x7f:
		return malformed("a control character is percent-encoded")
	case isUnreserved(c):
		return malformed("the path encodes a character that needs no encoding")
	case c == '/' || c == '\\' || c == ';':
		return malformed("the path has an encoded separator")
	}
	return nil
}

// checkQuery: RFC 3986, 3.4, and a few characters more that browsers send as they are. The query is matched by nothing and forwarded as it is.
func checkQuery(query string) *Violation {
	for i := range len(query) {
		if c := query[i]; c <= ' ' || c >= 0x7f || c == '#' || c == '"' || c == '<' || c == '>' {
			return malformed("the query has a character that must be percent-encoded")
		}
	}
	return checkEscapes(query, func(c byte) *Violation {
		if c == 0 {
			return malformed("a control character is percent-encoded")
		}
		return nil
	})
}

// checkEscapes wants well-formed percent-encoding, and asks judge about each encoded byte.
func checkEscapes(text string, judge func(byte) *Violation) *Violation {
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			continue
		}
		if i+2 >= len(text) || !isHex(text[i+1]) || !isHex(text[i+2]) {
			return malformed("bad percent-encoding")
		}
		if v := judge(unhex(text[i+1])<<4 | unhex(text[i+2])); v != nil {
			return v
		}
		i += 2
	}
	return nil
}

func isHex(c byte) bool {
	return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c >= 'a':
		return c - 'a' + 10
	}
	return c - 'A' + 10
}

func isUnreserved(c byte) bool {
	return isAlphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '~'
}
