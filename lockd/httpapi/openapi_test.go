package httpapi_test

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/strictjson"
	"fenceline/lockd/httpapi"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// object is a JSON object.
type object = map[string]any

// at walks down a document, following references on the way.
func at(t *testing.T, document any, path ...string) any {
	t.Helper()
	here := document
	for _, name := range path {
		value, ok := here.(object)[name]
		require.True(t, ok, "no %s in %v", name, path)
		here = value
		for {
			reference, ok := here.(object)
			target, isReference := reference["$ref"].(string)
			if !ok || !isReference {
				break
			}
			here = at(t, document, strings.Split(strings.TrimPrefix(target, "#/"), "/")...)
		}
	}
	return here
}

// served is the document as lockd serves it.
func served(t *testing.T, s *server) object {
	t.Helper()
	got := s.send(t, "GET", "/openapi.json", "")
	require.Equal(t, 200, got.status)
	require.Equal(t, "application/json; charset=utf-8", got.header.Get("Content-Type"))
	var document object
	require.NoError(t, json.Unmarshal([]byte(got.body), &document))
	require.Equal(t, "3.1.0", document["openapi"])
	return document
}

// bodies are what each call reads and writes.
func bodies() map[string][2]any {
	return map[string][2]any{
		"open_session": {lockapi.OpenSessionRequest{}, lockapi.Session{}}, "heartbeat": {nil, lockapi.Heartbeat{}}, "close_session": {},
		"acquire": {lockapi.AcquireRequest{}, lockapi.LockGrant{}}, "renew": {lockapi.RenewRequest{}, lockapi.LockGrant{}}, "release": {nil, lockapi.ReleaseResult{}},
		"inspect": {nil, lockapi.LockInfo{}}, "revoke": {lockapi.RevokeRequest{}, lockapi.Revocation{}}, "list_locks": {nil, lockapi.LockPage{}},
		"list_revocations": {nil, lockapi.RevocationPage{}}, "openapi": {},
	}
}

// refusals are the codes of each call beyond those that every call can give.
func refusals() map[string][]string {
	return map[string][]string{
		"open_session": {}, "heartbeat": {"SESSION_UNKNOWN", "SESSION_EXPIRED"}, "close_session": {"SESSION_UNKNOWN"},
		"acquire": {"SESSION_UNKNOWN", "SESSION_EXPIRED", "LOCK_CONTENDED", "CONTENTION_EXCEEDED", "CLIENT_CLOSED_REQUEST"},
		"renew":   {"INVALID_TOKEN", "LOCK_LOST"}, "release": {"INVALID_TOKEN"}, "inspect": {},
		"revoke": {"FORBIDDEN", "LOCK_NOT_HELD", "TOKEN_MISMATCH"}, "list_locks": {"FORBIDDEN"}, "list_revocations": {"FORBIDDEN"}, "openapi": {},
	}
}

var (
	everyCall = []string{"VALIDATION_FAILED", "UNAUTHENTICATED", "REQUEST_TIMEOUT", "BODY_TOO_LARGE", "HEAD_TOO_LARGE", "INTERNAL", "BACKEND_UNAVAILABLE", "OVERLOADED"}
	noCall    = []string{"NOT_FOUND", "METHOD_NOT_ALLOWED"}
)

func TestDocumentHasExactlyTheCallsThatThereAre(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{})
	document := served(t, s)
	var documented, there []string
	for path, methods := range at(t, document, "paths").(object) {
		for method := range methods.(object) {
			documented = append(documented, strings.ToUpper(method)+" "+path)
		}
	}
	routes, parameters, operator := s.api.Calls()
	for i, r := range routes {
		there = append(there, r.Method+" "+r.Path)
		call := at(t, document, "paths", r.Path, strings.ToLower(r.Method)).(object)
		require.Equal(t, r.Name, call["operationId"])
		require.Equal(t, operator[i], call["x-operator"] == true, r.Name)
		var query, path []string
		listed, _ := call["parameters"].([]any)
		for j := range listed {
			parameter := listed[j].(object)
			if reference, ok := parameter["$ref"].(string); ok {
				parameter = at(t, document, strings.Split(strings.TrimPrefix(reference, "#/"), "/")...).(object)
			}
			switch parameter["in"] {
			case "query":
				query = append(query, parameter["name"].(string))
			case "path":
				path = append(path, "{"+parameter["name"].(string)+"}")
			}
		}
		require.Equal(t, parameters[i], query, r.Name)
		for _, name := range path {
			require.Contains(t, r.Path, name)
		}
		require.Equal(t, strings.Count(r.Path, "{"), len(path), r.Name)
	}
	require.ElementsMatch(t, there, documented)
}

func TestDocumentHasEveryRefusalWithItsStatus(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{})
	document := served(t, s)
	seen := map[string]bool{}
	routes, _, _ := s.api.Calls()
	for _, r := range routes {
		var codes []string
		for status, response := range at(t, document, "paths", r.Path, strings.ToLower(r.Method), "responses").(object) {
			if status < "400" {
				continue
			}
			reference := response.(object)["$ref"].(string)
			schema := at(t, document, "components", "responses", strings.TrimPrefix(reference, "#/components/responses/"), "content", "application/json", "schema").(object)
			require.Equal(t, "#/components/schemas/Error", schema["allOf"].([]any)[0].(object)["$ref"])
			for _, code := range at(t, schema["allOf"].([]any)[1], "properties", "code", "enum").([]any) {
				info, known := lockapi.Lookup(code.(string))
				require.True(t, known, code)
				require.Equal(t, status, jsonOf(t, info.Status), code)
				codes = append(codes, info.Code)
				seen[info.Code] = true
			}
		}
		require.ElementsMatch(t, slices.Concat(everyCall, refusals()[r.Name]), codes, r.Name)
	}
	var catalogue []string
	for _, info := range lockapi.Catalogue() {
		catalogue = append(catalogue, info.Code)
	}
	require.ElementsMatch(t, catalogue, slices.Concat(slices.Collect(maps.Keys(seen)), noCall), "no code is left out")
	var listed []string
	for _, code := range at(t, document, "components", "schemas", "ErrorCode", "enum").([]any) {
		listed = append(listed, code.(string))
	}
	require.Equal(t, catalogue, listed)
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	encoded, err := json.Marshal(v)
	require.NoError(t, err)
	return string(encoded)
}

// typeOf is the JSON type of a Go type, and the name of the schema if it is a struct.
func typeOf(of reflect.Type) (kind, schema string) {
	switch {
	case of == reflect.TypeFor[lockapi.Time]():
		return "string", ""
	case of.Kind() == reflect.Pointer:
		return typeOf(of.Elem())
	case of.Kind() == reflect.Slice:
		_, schema = typeOf(of.Elem())
		return "array", schema
	case of.Kind() == reflect.Struct:
		return "object", of.Name()
	case of.Kind() == reflect.Map:
		return "object", ""
	case of.Kind() == reflect.Bool:
		return "boolean", ""
	case of.Kind() == reflect.String:
		return "string", ""
	}
	return "integer", ""
}

// requireSchema holds a schema against the struct of its name.
func requireSchema(t *testing.T, document object, of reflect.Type, request bool) {
	t.Helper()
	schema := at(t, document, "components", "schemas", of.Name()).(object)
	require.Equal(t, "object", schema["type"])
	var required []any
	names := map[string]bool{}
	for field := range of.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		names[name] = true
		if !strings.Contains(options, "omitempty") {
			required = append(required, name)
		}
		property := at(t, document, "components", "schemas", of.Name(), "properties", name).(object)
		kind, inner := typeOf(field.Type)
		require.Equal(t, kind, property["type"], "%s.%s", of.Name(), name)
		if field.Type == reflect.TypeFor[lockapi.Time]() || field.Type == reflect.TypeFor[*lockapi.Time]() {
			require.Equal(t, "date-time", property["format"], "%s.%s", of.Name(), name)
		}
		if kind == "array" {
			require.Equal(t, "#/components/schemas/"+inner, property["items"].(object)["$ref"])
			requireSchema(t, document, field.Type.Elem(), false)
		}
	}
	for name := range schema["properties"].(object) {
		require.True(t, names[name], "%s has no member %s", of.Name(), name)
	}
	given, _ := schema["required"].([]any)
	require.Equal(t, required, given, of.Name())
	if request {
		require.Equal(t, false, schema["additionalProperties"], "%s refuses unknown members", of.Name())
	}
}

func TestDocumentsSchemasAreTheContractsStructs(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{keys: []string{"a", "b"}, ended: 9})
	document := served(t, s)
	requireSchema(t, document, reflect.TypeFor[lockapi.Error](), false)
	routes, _, _ := s.api.Calls()
	require.Len(t, bodies(), len(routes))
	for _, r := range routes {
		call, body := at(t, document, "paths", r.Path, strings.ToLower(r.Method)).(object), bodies()[r.Name]
		require.Equal(t, body[0] != nil, call["requestBody"] != nil, r.Name)
		if body[0] != nil {
			schema := at(t, call, "requestBody", "content", "application/json").(object)["schema"].(object)["$ref"]
			require.Equal(t, "#/components/schemas/"+reflect.TypeOf(body[0]).Name(), schema)
			requireSchema(t, document, reflect.TypeOf(body[0]), true)
			got := s.send(t, r.Method, strings.NewReplacer("{key}", "k", "{sessionId}", sessionID).Replace(r.Path), `{"unheardOf":1}`, "X-Owner-Id", "w", "X-Fencing-Token", "7")
			require.Equal(t, 400, got.status, "what the document refuses, lockd refuses: %s", r.Name)
			require.Contains(t, got.envelope.Message, "unknown member")
		}
		if body[1] == nil {
			continue
		}
		asked := contract()[r.Name]
		response := at(t, call, "responses", jsonOf(t, asked.status), "content", "application/json").(object)["schema"].(object)["$ref"]
		require.Equal(t, "#/components/schemas/"+reflect.TypeOf(body[1]).Name(), response)
		requireSchema(t, document, reflect.TypeOf(body[1]), false)
		written := reflect.New(reflect.TypeOf(body[1])).Interface()
		require.NoError(t, strictjson.Decode([]byte(s.call(t, asked).body), written), "the call writes this struct: %s", r.Name)
	}
}

func TestDocumentsBoundsAreTheDomains(t *testing.T) {
	t.Parallel()
	document := served(t, serve(t, &fakeStore{}))
	for member, want := range map[string][3]int64{
		"OpenSessionRequest.ttlMillis": {lock.MinSessionTTL.Milliseconds(), lock.MaxSessionTTL.Milliseconds(), lock.DefaultSessionTTL.Milliseconds()},
		"AcquireRequest.ttlMillis":     {lock.MinLockTTL.Milliseconds(), lock.MaxLockTTL.Milliseconds(), lock.DefaultLockTTL.Milliseconds()},
		"RenewRequest.ttlMillis":       {lock.MinLockTTL.Milliseconds(), lock.MaxLockTTL.Milliseconds(), lock.DefaultLockTTL.Milliseconds()},
		"AcquireRequest.waitMillis":    {0, lock.MaxWait.Milliseconds(), 0},
	} {
		schema, name, _ := strings.Cut(member, ".")
		property := at(t, document, "components", "schemas", schema, "properties", name).(object)
		require.EqualValues(t, want, [3]int64{int64(property["minimum"].(float64)), int64(property["maximum"].(float64)), int64(property["default"].(float64))}, member)
	}
	reason := at(t, document, "components", "schemas", "RevokeRequest", "properties", "reason").(object)
	require.EqualValues(t, []float64{lock.MinReasonLength, lock.MaxReasonLength}, []float64{reason["minLength"].(float64), reason["maxLength"].(float64)})
	pattern := at(t, document, "components", "schemas", "Key", "pattern").(string)
	require.Equal(t, lock.KeyPattern, pattern)
}

// The document is a client's call like any other.
func TestDocumentNeedsATokenWhereCallsDo(t *testing.T) {
	t.Parallel()
	s := serveTo(t, &fakeStore{}, httpapi.Callers{Clients: tokens(t, clientToken)})
	require.Equal(t, 401, s.send(t, "GET", "/openapi.json", "").status)
	require.Equal(t, 200, s.send(t, "GET", "/openapi.json", "", "Authorization", "Bearer "+clientToken).status)
}
