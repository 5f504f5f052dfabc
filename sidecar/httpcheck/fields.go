package httpcheck

import "strings"

// splitFields splits the header lines by RFC 9112, section 5: CRLF at each line's end and nowhere else, no folded lines, a name of token
// characters directly before the colon.
func splitFields(raw string) ([]Header, *Violation) {
	lines := make([]Header, 0, strings.Count(raw, "\n"))
	for raw != "" {
		line, rest, found := strings.Cut(raw, "\n")
		line, ended := strings.CutSuffix(line, "\r")
		if !found || !ended {
			return nil, malformed("a header line doesn't end in CRLF")
		}
		raw = rest
		if line == "" {
			if raw != "" {
				return nil, malformed("something follows the end of the head")
			}
			return lines, nil
		}
		h, v := splitField(line)
		if v != nil {
			return nil, v
		}
		lines = append(lines, h)
	}
	return lines, nil
}

func splitField(line string) (Header, *Violation) {
	if line[0] == ' ' || line[0] == '\t' {
		return Header{}, malformed("a header line is folded")
	}
	name, value, found := strings.Cut(line, ":")
	if !found || !isToken(name) {
		return Header{}, malformed("a header's name isn't a token directly before its colon")
	}
	value = strings.Trim(value, " \t")
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return Header{}, malformed("a header's value has a control character")
		}
	}
	return Header{Name: name, Value: value}, nil
}

// isToken: RFC 9110, 5.6.2.
func isToken(text string) bool {
	for i := range len(text) {
		if c := text[i]; !isAlphanumeric(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return text != ""
}

// isPlain: letters, digits and hyphens, which every reader keeps apart.
func isPlain(name string) bool {
	for i := range len(name) {
		if !isAlphanumeric(name[i]) && name[i] != '-' {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || isDigit(c)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
