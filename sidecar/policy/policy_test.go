package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"fenceline/sidecar/config"
)

const (
	claim   = "/v1/payouts/{payout_id}/claim"
	payout  = "7f9c2ba4-e88f-427d-8c4a-1d2e3f405162"
	another = "00000000-0000-4000-8000-000000000001"
)

// paymentRoutes are the routes of a payment resource: two guarded ones, one passed, and all reads.
func paymentRoutes() []config.Route {
	return []config.Route{
		{Name: "claim", Methods: []string{"POST"}, Path: claim, Guard: "account", Admit: config.AdmitNewerOrSame, Mode: config.ModeEnforce, Key: config.Key{Path: "payout_id"}},
		{Name: "post", Methods: []string{"POST", "PUT"}, Path: "/v1/payouts/{payout_id}/post", Guard: "account", Mode: config.ModeEnforce, Key: config.Key{Path: "payout_id"}},
		{Name: "create", Methods: []string{"POST"}, Path: "/v1/payouts", Pass: true, Mode: config.ModeEnforce},
		{Name: "reads", Methods: []string{"GET", "HEAD"}, Pass: true, Mode: config.ModeEnforce},
	}
}

func build(t *testing.T, keyType config.KeyType, unmatched config.Unmatched, routes ...config.Route) *Policy {
	t.Helper()
	p, err := New(&config.Config{
		Guards:    []config.Guard{{Name: "account", Mark: config.Mark{KeyType: keyType}}},
		Routes:    routes,
		Unmatched: unmatched,
	})
	require.NoError(t, err)
	return p
}

// decided is a match in one word: the route's name, or the outcome.
func decided(m Match) string {
	switch m.Outcome {
	case Matched:
		return m.Route.Name
	case WrongMethod:
		return "405 " + strings.Join(m.Allowed, ",")
	case PassUnmatched:
		return "pass"
	case NoRoute:
	}
	return "403"
}

func TestFirstMatchingRouteDecides(t *testing.T) {
	t.Parallel()
	p := build(t, config.KeyUUID, config.UnmatchedReject, paymentRoutes()...)
	for request, want := range map[string]string{
		"POST /v1/payouts/7/claim":    "claim",
		"PUT /v1/payouts/7/post":      "post",
		"POST /v1/payouts":            "create",
		"GET /v1/payouts/7/claim":     "reads",
		"HEAD /":                      "reads",
		"GET /anything/at/all":        "reads",
		"PUT /v1/payouts/7/claim":     "405 POST",
		"DELETE /v1/payouts/7/post":   "405 POST,PUT",
		"DELETE /v1/payouts":          "405 POST",
		"OPTIONS *":                   "403",
		"POST /v1/payouts//claim":     "403",
		"POST /v1/payouts/7/8/claim":  "403",
		"POST /v1/payouts/7/claim/":   "403",
		"POST /v1/payouts/7":          "403",
		"POST v1/payouts":             "403",
		"POST ":                       "403",
		"POST /":                      "403",
		"POST /.fence/barrier":        "403",
		"GET /.fence/barrier":         "403",
		"GET /.FENCE":                 "403",
		"GET /.fenced":                "reads",
		"POST /prefix/v1/payouts":     "403",
		"get /v1/payouts":             "405 POST",
		"POST /V1/payouts/7/claim":    "403",
		"POST /v1/payouts/7/CLAIM":    "403",
		"POST /v1/payouts/7/claim%20": "403",
	} {
		method, path, _ := strings.Cut(request, " ")
		require.Equal(t, want, decided(p.Match(method, path)), request)
	}
}

func TestParametersAreTheBytesOfThePath(t *testing.T) {
	t.Parallel()
	p := build(t, config.KeyUUID, config.UnmatchedReject, paymentRoutes()...)
	m := p.Match("POST", "/v1/payouts/a%C3%A9:%252F/claim")
	require.Equal(t, map[string]string{"payout_id": "a%C3%A9:%252F"}, m.Params)
	require.True(t, m.Route.Guarded())
	require.Equal(t, "account", m.Route.Guard.Name)
}

// H1e, H38 and H47: what isn't matched to a guarded route byte for byte must not pass beside it, since the resource may take it for
// the same.
func TestOtherSpellingOfAGuardedRequestDoesNotPass(t *testing.T) {
	t.Parallel()
	everything := config.Route{Name: "rest", Methods: []string{"GET", "POST", "post", "PUT"}, Pass: true, Mode: config.ModeEnforce}
	spellings := []string{
		"POST /V1/payouts/7/claim", "POST /v1/payouts/7/Claim", "POST /v1/payouts/7/claim/", "POST /v1/payouts/7/claim%20", "post /v1/payouts/7/claim",
		"POST /v1/payouts/7/clai%6D", "POST /v1/payouts/7/claim.json", "POST /v1/payout%C5%BF/7/claim", "POST /v1/payouts/7/CLAIM.",
	}
	for name, p := range map[string]*Policy{
		"a passed route behind": build(t, config.KeyUUID, config.UnmatchedReject, append(paymentRoutes()[:2], everything)...),
		"unmatched passes":      build(t, config.KeyUUID, config.UnmatchedPass, paymentRoutes()[:2]...),
	} {
		for _, spelling := range spellings {
			method, path, _ := strings.Cut(spelling, " ")
			require.NotContains(t, []string{"rest", "pass"}, decided(p.Match(method, path)), "%s: %s", name, spelling)
		}
	}
	p := build(t, config.KeyUUID, config.UnmatchedPass, append(paymentRoutes()[:2], everything)...)
	require.Equal(t, "rest", decided(p.Match("GET", "/V1/payouts/7/claim")), "a method that isn't guarded")
	require.Equal(t, "rest", decided(p.Match("POST", "/v1/payouts/7/claims")))
	require.Equal(t, "pass", decided(p.Match("DELETE", "/v1/payouts/7/claims")))
	require.Equal(t, "403", decided(p.Match("DELETE", "/v1/payouts/7/CLAIM")), "unmatched, and near a guarded path")
	require.Equal(t, "405 POST", decided(p.Match("DELETE", "/v1/payouts/7/claim")), "unmatched, on a guarded path")
}

func TestRouteBeforeAGuardedOneTakesItsRequestsOnPurpose(t *testing.T) {
	t.Parallel()
	health := config.Route{Name: "health", Methods: []string{"POST"}, Path: "/v1/payouts/health/claim", Pass: true, Mode: config.ModeEnforce}
	p := build(t, config.KeyUUID, config.UnmatchedReject, append([]config.Route{health}, paymentRoutes()...)...)
	require.Equal(t, "health", decided(p.Match("POST", "/v1/payouts/health/claim")))
	require.Equal(t, "claim", decided(p.Match("POST", "/v1/payouts/Health/claim")))
}

func TestModeOffForwardsWithoutGuard(t *testing.T) {
	t.Parallel()
	routes := paymentRoutes()
	routes[0].Mode = config.ModeOff
	p := build(t, config.KeyUUID, config.UnmatchedReject, routes...)
	m := p.Match("POST", "/v1/payouts/7/claim")
	require.Equal(t, "claim", m.Route.Name)
	require.False(t, m.Route.Guarded())
}

func TestUnknownGuardAndBadTemplateAreErrors(t *testing.T) {
	t.Parallel()
	for _, route := range []config.Route{{Name: "a", Path: "a"}, {Name: "a", Path: "/a", Guard: "none"}} {
		_, err := New(&config.Config{Routes: []config.Route{route}})
		require.ErrorContains(t, err, "route a")
	}
}

// Whatever is admitted under a parameter comes from exactly one non-empty segment, and building the path from it gives the path.
func TestMatchedPathIsItsTemplateWithItsParameters(t *testing.T) {
	t.Parallel()
	p := build(t, config.KeyText, config.UnmatchedReject, paymentRoutes()[0])
	rapid.Check(t, func(t *rapid.T) {
		path := "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"v1", "payouts", "7", "claim", "", "%C3%A9", "{payout_id}", "V1"}), 0, 6).Draw(t, "segments"), "/")
		m := p.Match("POST", path)
		if m.Outcome != Matched {
			return
		}
		id := m.Params["payout_id"]
		if id == "" || strings.Contains(id, "/") || strings.Replace(claim, "{payout_id}", id, 1) != path {
			t.Fatalf("%q matched with %q", path, id)
		}
	})
	require.Equal(t, "claim", decided(p.Match("POST", "/v1/payouts/7/claim")))
}
