package config

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Template is a path template such as /v1/payouts/{payout_id}/claim. A parameter is one whole, non-empty segment. Everything
// else matches byte for byte.
type Template struct{ segments []segment }

type segment struct {
	literal string
	param   string
}

var (
	literalSegment = regexp.MustCompile(`^[A-Za-z0-9._~!$&'()*+,=:@-]+$`)
	paramSegment   = regexp.MustCompile(`^\{([A-Za-z_][A-Za-z0-9_]*)\}$`)
	paramGrammar   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// ParseTemplate reads a template.
func ParseTemplate(text string) (Template, error) {
	if !strings.HasPrefix(text, "/") {
		return Template{}, errors.New("a path begins with /")
	}
	var t Template
	if text == "/" {
		return t, nil
	}
	for part := range strings.SplitSeq(text[1:], "/") {
		s := segment{literal: part}
		if m := paramSegment.FindStringSubmatch(part); m != nil {
			s = segment{param: m[1]}
		} else if part == "" {
			return Template{}, errors.New("a path has no empty segment and no slash at its end")
		} else if !literalSegment.MatchString(part) || part == "." || part == ".." {
			return Template{}, fmt.Errorf("segment %q: want unencoded characters of RFC 3986 without ; or a whole parameter such as {payout_id}", part)
		}
		if s.param != "" && slices.Contains(t.Params(), s.param) {
			return Template{}, fmt.Errorf("the parameter {%s} stands twice", s.param)
		}
		t.segments = append(t.segments, s)
	}
	return t, nil
}

// Params are the names of the template's parameters.
func (t Template) Params() []string {
	var names []string
	for _, s := range t.segments {
		if s.param != "" {
			names = append(names, s.param)
		}
	}
	return names
}

// Match returns the parameters' values as they stand in the path.
func (t Template) Match(path string) (params map[string]string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/")
	if !ok {
		return nil, false
	}
	if len(t.segments) == 0 {
		return nil, rest == ""
	}
	for i, s := range t.segments {
		part, after, more := strings.Cut(rest, "/")
		if part == "" || more != (i < len(t.segments)-1) || s.param == "" && part != s.literal {
			return nil, false
		}
		if s.param != "" {
			if params == nil {
				params = make(map[string]string, 2)
			}
			params[s.param] = part
		}
		rest = after
	}
	return params, true
}

// Resembles says whether a careless resource could take the path for one that matches: one that looks past case, percent-encoding, a slash at
// the end, or what follows a dot in the last segment (some frameworks take claim.json for claim).
func (t Template) Resembles(path string) bool {
	parts := strings.Split(strings.TrimRight(strings.TrimPrefix(path, "/"), "/"), "/")
	if len(t.segments) == 0 {
		return len(parts) == 1 && parts[0] == ""
	}
	if len(parts) != len(t.segments) {
		return false
	}
	for i, s := range t.segments {
		decoded, err := url.PathUnescape(parts[i])
		if err != nil {
			decoded = parts[i] // a careless reader of what is no encoding may take it as it stands
		}
		switch {
		case decoded == "":
			return false
		case s.param != "" || strings.EqualFold(strings.TrimSpace(decoded), s.literal):
			continue
		}
		beginning := decoded[:min(len(s.literal), len(decoded))]
		suffixed := len(decoded) > len(s.literal) && strings.EqualFold(beginning, s.literal) && decoded[len(s.literal)] == '.'
		if !suffixed || i < len(t.segments)-1 {
			return false
		}
	}
	return true
}

// overlaps says whether some path matches both; covers, whether every path of other matches t.
func (t Template) overlaps(other Template) bool {
	return t.compare(other, func(a, b segment) bool { return a.param != "" || b.param != "" || a.literal == b.literal })
}

func (t Template) covers(other Template) bool {
	return t.compare(other, func(a, b segment) bool { return a.param != "" || b.param == "" && a.literal == b.literal })
}

func (t Template) compare(other Template, same func(a, b segment) bool) bool {
	return slices.EqualFunc(t.segments, other.segments, same)
}
