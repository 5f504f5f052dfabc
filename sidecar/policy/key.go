package policy

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"fenceline/sidecar/config"
)

// ErrKeyInvalid means that the request doesn't say its key in the one way that is accepted. The text says what was wrong and quotes no
// value.
var ErrKeyInvalid = errors.New("key is invalid")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrKeyInvalid, fmt.Sprintf(format, args...))
}

// Input is the part of a request that keys come from. It is the part that is forwarded, byte for byte.
type Input struct {
	Params map[string]string          // from Match
	Header func(name string) []string // every value of a header
	Query  string                     // raw, without the question mark
	Body   []byte                     // whole
}

// Key is a request's key, or the query that finds it.
type Key struct {
	Value  string // canonical; empty when there is a Lookup
	Lookup *Lookup
}

// Lookup is a query for the store. What it returns goes through Canonical.
type Lookup struct {
	SQL       string
	Args      []string
	Immutable bool // the result never changes, so it may be cached
}

// Key extracts the route's key from the request. It is for guarded routes; every error is an ErrKeyInvalid.
func (r *Route) Key(in Input) (Key, error) {
	if r.Route.Key.Lookup == nil {
		text, err := source(r.Route.Key, in)
		if err != nil {
			return Key{}, err
		}
		value, err := r.Canonical(text)
		return Key{Value: value}, err
	}
	args := make([]string, 0, len(r.keyArgs))
	for _, name := range r.keyArgs {
		text, err := source(r.Route.Key.Lookup.Params[name], in)
		if err != nil {
			return Key{}, err
		}
		if err := checkText(text); err != nil {
			return Key{}, err
		}
		args = append(args, text)
	}
	return Key{Lookup: &Lookup{SQL: r.keySQL, Args: args, Immutable: r.Route.Key.Lookup.Cache == config.CacheImmutable}}, nil
}

// Fenced is what a statement on_fenced is told of the request.
type Fenced struct {
	Token, Highest int64
	Key, Owner     string
}

// FencedStatement is what the route wants to be run when this request is fenced out, "" for nothing. A parameter that the request
// doesn't have, or not in the one way that is accepted, is nil.
func (r *Route) FencedStatement(in Input, f Fenced) (statement string, args []any) {
	for _, name := range r.fencedArgs {
		switch name {
		case config.ParamToken:
			args = append(args, f.Token)
		case config.ParamHighest:
			args = append(args, f.Highest)
		case config.ParamKey:
			args = append(args, f.Key)
		case config.ParamOwner:
			args = append(args, f.Owner)
		default:
			text, err := source(r.OnFenced.Params[name], in)
			if err != nil || checkText(text) != nil {
				args = append(args, nil)
				continue
			}
			args = append(args, text)
		}
	}
	return r.fencedSQL, args
}

// maxKeyLength bounds a key, in bytes.
const maxKeyLength = 512

func checkText(text string) error {
	if text == "" || len(text) > maxKeyLength || !utf8.ValidString(text) {
		return invalid("want 1 to %d bytes of UTF-8", maxKeyLength)
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return invalid("control characters are not allowed")
	}
	if strings.TrimSpace(text) != text {
		return invalid("spaces at its ends are not allowed") // some readers cut them off
	}
	return nil
}

// Canonical gives the one spelling of a key, by the guard's key type, so that two spellings of one key can't have
// two marks. It is for guarded routes; every error is an ErrKeyInvalid.
func (r *Route) Canonical(text string) (string, error) {
	if err := checkText(text); err != nil {
		return "", err
	}
	switch r.Guard.Mark.KeyType {
	case config.KeyUUID:
		id, err := uuid.Parse(text)
		if err != nil || len(text) != len(uuid.UUID{}.String()) { // Parse takes other forms too
			return "", invalid("want a UUID of 36 characters, with hyphens")
		}
		return id.String(), nil
	case config.KeyInt:
		if !isInteger(text) {
			return "", invalid("want a whole number of 64 bits without plus sign or leading zeros")
		}
		return text, nil
	case config.KeyText:
		return text, nil
	}
	return "", invalid("unknown key type")
}

// isInteger says whether the text is the one spelling of an int64.
func isInteger(text string) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && strconv.FormatInt(n, 10) == text
}

// source reads one value from where the configuration says.
func source(k config.Key, in Input) (string, error) {
	switch {
	case k.Path != "":
		// Decoded once. The decoded text is the key, so %C3%A9 and %c3%a9 are one key; and httpcheck lets no unreserved character through in encoded form,
		// so 7 and %37 aren't two paths.
		text, err := url.PathUnescape(in.Params[k.Path])
		if err != nil {
			return "", invalid("path segment {%s}: bad percent-encoding", k.Path)
		}
		return text, nil
	case k.Header != "":
		return fromHeader(k.Header, in.Header(k.Header))
	case k.Query != "":
		return fromQuery(k.Query, in.Query)
	case k.JSON != "":
		if err := checkJSONType(in.Header("Content-Type")); err != nil {
			return "", err
		}
		return fromJSON(k.JSON, in.Body)
	}
	return "", invalid("the route has no source for it")
}

// fromHeader wants one line with one value: a comma would make a list of it (RFC 9110, 5.3).
func fromHeader(name string, values []string) (string, error) {
	if len(values) != 1 {
		return "", invalid("header %s stands %d times, want once", name, len(values))
	}
	if strings.Contains(values[0], ",") {
		return "", invalid("header %s holds a list, want one value", name)
	}
	return values[0], nil
}

// foldQueryName gives a parameter's name as the most careless reader sees it: without case, without an index behind it, and with
// one character for all that PHP turns into an underscore.
func foldQueryName(name string) string {
	name = strings.TrimSpace(strings.ToLower(name))
	if base, _, indexed := strings.Cut(name, "["); indexed && strings.HasSuffix(name, "]") {
		name = base
	}
	return strings.NewReplacer(".", "_", " ", "_", "[", "_", "-", "_").Replace(name)
}

// fromQuery wants exactly one parameter of that name, and a query that all readers split alike. Some readers ignore the case of names, and
// some take name[] or name[x] for another form of name.
func fromQuery(name, raw string) (string, error) {
	if strings.Contains(raw, ";") {
		return "", invalid("a query with ; is read in two ways")
	}
	var found []string
	for pair := range strings.SplitSeq(raw, "&") {
		rawName, rawValue, _ := strings.Cut(pair, "=")
		thisName, err := url.QueryUnescape(rawName)
		if err != nil {
			return "", invalid("the query isn't well-formed")
		}
		if foldQueryName(thisName) != foldQueryName(name) {
			continue
		}
		if thisName != name {
			return "", invalid("the query has a parameter that differs from %s in case or punctuation only", name)
		}
		value, err := url.QueryUnescape(rawValue)
		if err != nil {
			return "", invalid("the query isn't well-formed")
		}
		found = append(found, value)
	}
	if len(found) != 1 {
		return "", invalid("query parameter %s stands %d times, want once", name, len(found))
	}
	return found[0], nil
}
