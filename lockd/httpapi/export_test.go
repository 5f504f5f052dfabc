package httpapi

import "fenceline/internal/httpserver"

// Calls are the routes of the API, with the parameters of each query string and whether the call is for operators.
func (a *API) Calls() (routes []httpserver.Route, parameters [][]string, operator []bool) {
	for _, e := range a.calls {
		routes, parameters, operator = append(routes, e.Route), append(parameters, e.parameters), append(operator, e.operator)
	}
	return routes, parameters, operator
}
