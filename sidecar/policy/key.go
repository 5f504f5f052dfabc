package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"fenceline/sidecar/config"
)

// ErrKeyInvalid means that the request doesn't say its key in the one way that is accepted. The text says what was wrong and quotes no
// value.
var ErrKeyInvalid = errors.New("key is invalid")

// Input is the part of a request that keys come from.
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

// Key extracts the route's key from the request.
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

// maxKeyLength bounds a key, in bytes.
const maxKeyLength = 512

func checkText(text string) error {
	if text == "" || len(text) > maxKeyLength || !utf8.ValidString(text) {
		return fmt.Errorf("%w: want 1 to %d bytes of UTF-8", ErrKeyInvalid, maxKeyLength)
	}
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return fmt.Errorf("%w: control characters are not allowed", ErrKeyInvalid)
	}
	return nil
}

// Canonical gives the one spelling of a key, by the guard's key type, so that two spellings of one key can't have
// two marks.
func (r *Route) Canonical(text string) (string, error) {
	if err := checkText(text); err != nil {
		return "", err
	}
	switch r.Guard.Mark.KeyType {
	case config.KeyUUID:
		id, err := uuid.Parse(text)
		if err != nil || len(text) != 36 {
			return "", fmt.Errorf("%w: want a UUID with hyphens", ErrKeyInvalid)
		}
		return id.String(), nil
	case config.KeyInt:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || strconv.FormatInt(n, 10) != text {
			return "", fmt.Errorf("%w: want a whole number without sign or leading zeros", ErrKeyInvalid)
		}
		return text, nil
	case config.KeyText:
		return text, nil
	}
	return "", fmt.Errorf("%w: unknown key type", ErrKeyInvalid)
}

// source reads one value from where the configuration says.
func source(k config.Key, in Input) (string, error) {
	switch {
	case k.Path != "":
		// httpcheck lets no unreserved character through in encoded form, so every decoded text has one encoded spelling.
		text, err := url.PathUnescape(in.Params[k.Path])
		if err != nil {
			return "", fmt.Errorf("%w: path segment {%s}: bad percent encoding", ErrKeyInvalid, k.Path)
		}
		return text, nil
	case k.Header != "":
		values := in.Header(k.Header)
		if len(values) != 1 {
			return "", fmt.Errorf("%w: header %s stands %d times, want once", ErrKeyInvalid, k.Header, len(values))
		}
		return values[0], nil
	case k.Query != "":
		return fromQuery(k.Query, in.Query)
	case k.JSON != "":
		return fromJSON(k.JSON, in.Body)
	}
	return "", fmt.Errorf("%w: the route has no source for it", ErrKeyInvalid)
}

// fromQuery wants exactly one parameter of that name, and a query that all readers split alike.
func fromQuery(name, raw string) (string, error) {
	if strings.Contains(raw, ";") {
		return "", fmt.Errorf("%w: a query with ; is read in two ways", ErrKeyInvalid)
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return "", fmt.Errorf("%w: the query isn't well-formed", ErrKeyInvalid)
	}
	if len(values[name]) != 1 {
		return "", fmt.Errorf("%w: query parameter %s stands %d times, want once", ErrKeyInvalid, name, len(values[name]))
	}
	return values[name][0], nil
}

// fromJSON reads the member that a JSON pointer (RFC 6901) names. The whole body is read, since a later member of the same name
// would be a second reading of it: duplicates are refused, and so are names that differ from the wanted one in case only (some decoders
// take those for the same).
func fromJSON(pointer string, body []byte) (string, error) {
	if err := jsontext.Value(body).Kind(); err == 0 || len(bytes.TrimSpace(body)) == 0 {
		return "", fmt.Errorf("%w: the body isn't JSON", ErrKeyInvalid)
	}
	decoder := jsontext.NewDecoder(bytes.NewReader(body))
	want := strings.Split(pointer[1:], "/")
	for i, token := range want {
		want[i] = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
	}
	found, err := walk(decoder, want)
	if err != nil {
		return "", err
	}
	if _, err := decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("%w: something follows the JSON body", ErrKeyInvalid)
	}
	if found == nil {
		return "", fmt.Errorf("%w: the body has no member %s", ErrKeyInvalid, pointer)
	}
	return *found, nil
}

// walk reads one value; want are the names that lead from it to the member.
func walk(decoder *jsontext.Decoder, want []string) (*string, error) {
	if len(want) == 0 {
		return readScalar(decoder)
	}
	if decoder.PeekKind() != '{' {
		return nil, skip(decoder)
	}
	if _, err := decoder.ReadToken(); err != nil {
		return nil, notJSON(err)
	}
	var found *string
	for decoder.PeekKind() != '}' {
		name, err := decoder.ReadToken()
		if err != nil {
			return nil, notJSON(err)
		}
		switch text := name.String(); {
		case text == want[0]:
			if found, err = walk(decoder, want[1:]); err != nil {
				return nil, err
			}
		case strings.EqualFold(text, want[0]):
			return nil, fmt.Errorf("%w: the body has a member that differs from %q in case only", ErrKeyInvalid, want[0])
		default:
			if err := skip(decoder); err != nil {
				return nil, err
			}
		}
	}
	if _, err := decoder.ReadToken(); err != nil {
		return nil, notJSON(err)
	}
	return found, nil
}

func skip(decoder *jsontext.Decoder) error {
	if err := decoder.SkipValue(); err != nil {
		return notJSON(err)
	}
	return nil
}

// readScalar reads a string, or a whole number in its one spelling.
func readScalar(decoder *jsontext.Decoder) (*string, error) {
	kind := decoder.PeekKind()
	value, err := decoder.ReadValue()
	if err != nil {
		return nil, notJSON(err)
	}
	var text string
	switch kind {
	case '"':
		unquoted, err := jsontext.AppendUnquote(nil, value)
		if err != nil {
			return nil, notJSON(err)
		}
		text = string(unquoted)
	case '0':
		n, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil || strconv.FormatInt(n, 10) != string(value) {
			return nil, fmt.Errorf("%w: a number as key must be whole, in plain digits", ErrKeyInvalid)
		}
		text = string(value)
	default:
		return nil, fmt.Errorf("%w: want a string or a whole number", ErrKeyInvalid)
	}
	return &text, nil
}

func notJSON(err error) error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return fmt.Errorf("%w: the body has a member twice", ErrKeyInvalid)
	}
	return fmt.Errorf("%w: the body isn't valid JSON", ErrKeyInvalid)
}
