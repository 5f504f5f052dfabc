package httpapi

import (
	_ "embed" // the document

	"fenceline/internal/httperr"
)

// openAPI describes every call. A test holds it against the calls, the catalogue and lockapi's structs.
//
//go:embed openapi.json
var openAPI []byte

// document gives the OpenAPI document.
func (a *API) document(c *call) error {
	c.SetContentType(httperr.ContentType)
	c.SetBody(openAPI)
	return nil
}
