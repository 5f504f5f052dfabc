package httpserver

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
)

// Query reads the query string: each parameter is known and stands there at most once. An empty value is as good as none.
func Query(ctx *fasthttp.RequestCtx, known []string) (url.Values, error) {
	_, text, _ := strings.Cut(string(ctx.RequestURI()), "?")
	if text == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(text)
	if err != nil {
		return nil, errors.New("the query string isn't well-formed")
	}
	for name, given := range values {
		switch {
		case len(known) == 0:
			return nil, errors.New("this call has no query parameters")
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("unknown parameter %.32q; known are %s", name, strings.Join(known, ", "))
		case len(given) > 1:
			return nil, fmt.Errorf("the parameter %s stands %d times, want at most once", name, len(given))
		}
	}
	return values, nil
}
