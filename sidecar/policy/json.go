package policy

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth bounds how deep a body may nest.
const maxDepth = 100

// checkJSONType refuses a body that its reader would take for something else than JSON in UTF-8: a form, for example, whose text
// happens to be JSON too. No type at all is left to the resource.
func checkJSONType(types []string) error {
	switch len(types) {
	case 0:
		return nil
	case 1:
	default:
		return invalid("Content-Type stands %d times, want once", len(types))
	}
	media, params, err := mime.ParseMediaType(types[0])
	if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") {
		return invalid("the Content-Type isn't JSON")
	}
	if charset, given := params["charset"]; given && !strings.EqualFold(charset, "utf-8") {
		return invalid("the body's charset isn't UTF-8")
	}
	return nil
}

// fromJSON reads the member that a JSON pointer (RFC 6901) names. The whole body is read, since a later member of the same name
// would be a second reading of it: duplicates are refused, and so are names that differ from the wanted one in case only (some decoders
// take those for the same).
func fromJSON(pointer string, body []byte) (string, error) {
	decoder := jsontext.NewDecoder(bytes.NewReader(body)) // refuses duplicate names and what isn't UTF-8
	want := strings.Split(pointer[1:], "/")
	for i, token := range want {
		want[i] = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
	}
	found, err := walk(decoder, want)
	if err != nil {
		return "", err
	}
	if _, err := decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return "", invalid("something follows the JSON body")
	}
	if found == nil {
		return "", invalid("the body has no member %s", pointer)
	}
	return *found, nil
}

// walk reads one value; want are the names that lead from it to the member.
func walk(decoder *jsontext.Decoder, want []string) (*string, error) {
	if len(want) == 0 {
		return readScalar(decoder)
	}
	if decoder.PeekKind() != jsontext.KindBeginObject {
		return nil, skip(decoder)
	}
	if _, err := decoder.ReadToken(); err != nil {
		return nil, notJSON(err)
	}
	var found *string
	for decoder.PeekKind() != jsontext.KindEndObject {
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
			return nil, invalid("the body has a member that differs from %q in case only", want[0])
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

// skip reads one value to its end.
func skip(decoder *jsontext.Decoder) error {
	outside := decoder.StackDepth()
	for {
		if _, err := decoder.ReadToken(); err != nil {
			return notJSON(err)
		}
		switch depth := decoder.StackDepth(); {
		case depth > maxDepth:
			return invalid("the body nests deeper than %d", maxDepth)
		case depth == outside:
			return nil
		}
	}
}

// readScalar reads a string, or a whole number in its one spelling.
func readScalar(decoder *jsontext.Decoder) (*string, error) {
	token, err := decoder.ReadToken()
	if err != nil {
		return nil, notJSON(err)
	}
	text := token.String() // of a number: as it stands in the body
	switch token.Kind() {
	case jsontext.KindString:
		return &text, nil
	case jsontext.KindNumber:
		if !isInteger(text) {
			return nil, invalid("a number as key must be whole, in plain digits")
		}
		return &text, nil
	default:
		return nil, invalid("want a string or a whole number")
	}
}

func notJSON(err error) error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return invalid("the body has a member twice")
	}
	return invalid("the body isn't valid JSON")
}
