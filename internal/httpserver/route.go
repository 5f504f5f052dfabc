package httpserver

import (
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"fenceline/internal/httperr"
)

// Route is where one call is found. Its name is a metric's label; a {parameter} in its path, of which there may be one, stands for one segment.
type Route struct{ Name, Method, Path string }

// Spec is the route itself, for types that embed it.
func (r Route) Spec() Route { return r }

// Find returns the route of a request and what stands in the place of its parameter, or the refusal: 404, or 405 with the header Allow. The path is
// taken as it was sent: an encoded or a doubled slash makes another path.
func Find[R interface{ Spec() Route }](ctx *fasthttp.RequestCtx, routes []R, method string) (found R, parameter string, refusal *httperr.Error) {
	path, _, _ := strings.Cut(string(ctx.RequestURI()), "?")
	var allowed []string
	for _, r := range routes {
		value, ok := match(r.Spec().Path, path)
		switch {
		case !ok:
			continue
		case r.Spec().Method == method:
			return r, value, nil
		}
		allowed = append(allowed, r.Spec().Method)
	}
	if len(allowed) == 0 {
		return found, "", httperr.New(fasthttp.StatusNotFound, CodeNotFound, "no such call")
	}
	slices.Sort(allowed)
	ctx.Response.Header.Set("Allow", strings.Join(allowed, ", "))
	return found, "", httperr.New(fasthttp.StatusMethodNotAllowed, CodeMethodNotAllowed, "this path doesn't have the method %.16q", ctx.Method())
}

func match(pattern, path string) (value string, ok bool) {
	before, rest, has := strings.Cut(pattern, "{")
	if !has {
		return "", path == pattern
	}
	_, after, _ := strings.Cut(rest, "}")
	value, ok = strings.CutPrefix(path, before)
	if !ok {
		return "", false
	}
	value, ok = strings.CutSuffix(value, after)
	return value, ok && value != "" && !strings.Contains(value, "/")
}
