// Package strictjson reads a JSON request body as one object with known members, each at most
// once and spelt exactly, and nothing after it. A lenient reader and a strict one can disagree about what was asked; here there is
// only one reading.
package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Decode reads the body into v, a pointer to a struct. The error names the member and never quotes a value.
func Decode(body []byte, v any) error {
	trimmed := bytes.TrimSpace(body)
	if len(trimmed) == 0 {
		return errors.New("the body is empty; want a JSON object")
	}
	if trimmed[0] != '{' {
		return errors.New("the body isn't a JSON object")
	}
	if err := json.Unmarshal(body, v, json.RejectUnknownMembers(true)); err != nil {
		return explain(err)
	}
	return nil
}

func explain(err error) error {
	var semantic *json.SemanticError
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return errors.New("the body has a member twice")
	case !errors.As(err, &semantic):
		return errors.New("the body isn't one valid JSON object")
	case errors.Is(err, json.ErrUnknownName):
		return fmt.Errorf("unknown member %q", member(semantic))
	}
	return fmt.Errorf("member %q: want %s", member(semantic), wanted(semantic.GoType))
}

func member(err *json.SemanticError) string {
	return strings.TrimPrefix(string(err.JSONPointer), "/")
}

func wanted(t reflect.Type) string {
	if t == nil {
		return "another type"
	}
	switch t.Kind() { // what request bodies consist of
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	default:
		return "another type"
	}
}
