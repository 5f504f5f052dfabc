// Package apitest holds lockd's answers against the OpenAPI document that it serves. It is for tests.
package apitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Answer is what a call was answered with.
type Answer struct {
	Method string
	Path   string // as requested, without the query
	Status int
	Header http.Header
	Body   []byte
}

// Document is a served OpenAPI document. It isn't safe for concurrent use.
type Document struct {
	root     map[string]any
	compiler *jsonschema.Compiler
}

// ErrMismatch is every finding: the answer isn't one that the document describes.
var ErrMismatch = errors.New("the answer isn't as the document says")

const location = "lockd:///openapi.json"

// Open reads a document. A member of an answer that the document doesn't name is a mismatch too, although JSON Schema lets it pass: the document is to
// say all that there is. So objects whose members are listed are closed.
func Open(served []byte) (*Document, error) {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(served))
	if err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	root, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("read the document: it isn't an object")
	}
	d := &Document{root: root, compiler: jsonschema.NewCompiler()}
	for _, schema := range object(root, "components", "schemas") {
		if closing, ok := schema.(map[string]any); ok && closing["properties"] != nil && closing["additionalProperties"] == nil {
			closing["additionalProperties"] = false
		}
	}
	d.compiler.DefaultDraft(jsonschema.Draft2020) // OpenAPI 3.1's
	d.compiler.AssertFormat()
	return d, d.compiler.AddResource(location, root)
}

// Check returns ErrMismatch unless the document describes the answer: its call, status, media type, headers and body.
func (d *Document) Check(a Answer) error {
	path, method := d.find(a.Path, strings.ToLower(a.Method))
	at := []string{"paths", path, method, "responses", fmt.Sprint(a.Status)}
	response := object(d.root, at...)
	switch {
	case path == "" || method == "":
		// Not a call. The document's introduction says so in words.
		if a.Status != http.StatusNotFound && a.Status != http.StatusMethodNotAllowed && a.Status != http.StatusUnauthorized && a.Status != http.StatusBadRequest {
			return fmt.Errorf("%w: %s %s is no call, and was answered %d", ErrMismatch, a.Method, a.Path, a.Status)
		}
		return d.body(a, "components", "schemas", "Error")
	case response == nil:
		return fmt.Errorf("%w: %s %s: no status %d", ErrMismatch, a.Method, path, a.Status)
	}
	if reference, ok := response["$ref"].(string); ok {
		at = strings.Split(strings.TrimPrefix(reference, "#/"), "/")
		response = object(d.root, at...)
	}
	for name, header := range object(response, "headers") {
		if err := d.header(a, name, append(slices.Clone(at), "headers", name, "schema")); err != nil {
			return fmt.Errorf("header %v: %w", header, err)
		}
	}
	if response["content"] == nil {
		if len(a.Body) > 0 {
			return fmt.Errorf("%w: %s %s: %d has a body: %s", ErrMismatch, a.Method, path, a.Status, a.Body)
		}
		return nil
	}
	return d.body(a, append(slices.Clone(at), "content", "application/json", "schema")...)
}

// find returns the path and the method that a request means; "" where there is none.
func (d *Document) find(path, method string) (template, verb string) {
	given := strings.Split(path, "/")
	for candidate, calls := range object(d.root, "paths") {
		parts := strings.Split(candidate, "/")
		same := len(parts) == len(given)
		for i := 0; same && i < len(parts); i++ {
			same = parts[i] == given[i] || strings.HasPrefix(parts[i], "{") && given[i] != ""
		}
		if !same {
			continue
		}
		if calls, ok := calls.(map[string]any); ok && calls[method] != nil {
			return candidate, method
		}
		template = candidate
	}
	return template, ""
}

// header wants a header exactly once and as its schema says: an integer where that is one.
func (d *Document) header(a Answer, name string, schema []string) error {
	values := a.Header.Values(name)
	if len(values) != 1 {
		return fmt.Errorf("%w: %s stands %d times", ErrMismatch, name, len(values))
	}
	return d.valid(json.Number(values[0]), schema)
}

func (d *Document) body(a Answer, schema ...string) error {
	if kind := a.Header.Get("Content-Type"); kind != "application/json; charset=utf-8" {
		return fmt.Errorf("%w: %s %s: %d has the media type %q", ErrMismatch, a.Method, a.Path, a.Status, kind)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(a.Body))
	if err != nil {
		return fmt.Errorf("%w: %s %s: %d: %w", ErrMismatch, a.Method, a.Path, a.Status, err)
	}
	if err := d.valid(value, schema); err != nil {
		return fmt.Errorf("%s %s: %d: %w: %s", a.Method, a.Path, a.Status, err, a.Body)
	}
	return nil
}

func (d *Document) valid(value any, schema []string) error {
	escaped := make([]string, len(schema))
	for i, name := range schema {
		escaped[i] = strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(name)
	}
	compiled, err := d.compiler.Compile(location + "#/" + strings.Join(escaped, "/"))
	if err != nil {
		return fmt.Errorf("compile the schema: %w", err)
	}
	if err := compiled.Validate(value); err != nil {
		return fmt.Errorf("%w: %w", ErrMismatch, err)
	}
	return nil
}

// object walks down to an object; nil when there is none.
func object(from map[string]any, path ...string) map[string]any {
	for _, name := range path {
		next, ok := from[name].(map[string]any)
		if !ok {
			return nil
		}
		from = next
	}
	return from
}
