package httpapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/credential"
	"fenceline/internal/credential/credtest"
	"fenceline/lockd/httpapi"
	"fenceline/lockd/lockapi"
)

const (
	clientToken   = "client-token-0123456789"
	operatorToken = "operator-token-0123456789"
)

func tokens(t *testing.T, token string) *credential.Source[credential.Tokens] {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	credtest.Write(t, path, token+"\n")
	source, err := credential.Open("tokens", credential.ParseTokens, credential.File{Path: path, Private: true})
	require.NoError(t, err)
	return source
}

// as makes a well-formed call with these further headers.
func (s *server) as(t *testing.T, r request, headers ...string) answer {
	t.Helper()
	return s.send(t, r.method, r.path, r.body, append([]string{"X-Owner-Id", "w", "X-Fencing-Token", "7"}, headers...)...)
}

func isOperators(name string) bool {
	return name == "revoke" || name == "list_locks" || name == "list_revocations"
}

// refusals reads lock_callers_refused_total, without zeros.
func (s *server) refusals(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := s.registry.Gather()
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "lock_callers_refused_total" && metric.GetCounter().GetValue() > 0 {
				counts[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	return counts
}

func TestCallWithoutAKnownTokenIsRefusedCountedAndAudited(t *testing.T) {
	t.Parallel()
	for name, r := range contract() {
		for says, c := range map[string]struct {
			reason  string
			headers []string
		}{
			"send a token":            {"token_missing", nil},
			"doesn't know this token": {"token_wrong", []string{"Authorization", "Bearer wrong-token-0123456789"}},
			"stands 2 times":          {"token_malformed", []string{"Authorization", "Bearer " + clientToken, "Authorization", "Bearer " + clientToken}},
			"isn't Bearer":            {"token_malformed", []string{"Authorization", "Basic " + clientToken}},
			"and a token":             {"token_malformed", []string{"Authorization", "Bearer  " + clientToken}},
		} {
			s := serveTo(t, &fakeStore{}, httpapi.Callers{Clients: tokens(t, clientToken), Operators: tokens(t, operatorToken)})
			got := s.as(t, r, c.headers...)
			require.Equal(t, 401, got.status, name)
			require.Equal(t, lockapi.CodeUnauthenticated, got.envelope.Code)
			require.Contains(t, got.envelope.Message, says)
			require.False(t, got.envelope.RetrySafe)
			require.Equal(t, `Bearer realm="lockd"`, got.header.Get("WWW-Authenticate"))
			require.Equal(t, map[string]float64{c.reason: 1}, s.refusals(t))
			require.Contains(t, s.log.String(), `"event":"caller_refused"`)
			require.Contains(t, s.log.String(), `"reason":"`+c.reason+`"`)
			require.Contains(t, s.log.String(), got.envelope.TraceID)
			require.NotContains(t, s.log.String()+got.body, "token-0123456789")
		}
	}
}

func TestTokenInAQueryParameterIsNone(t *testing.T) {
	t.Parallel()
	s := serveTo(t, &fakeStore{}, httpapi.Callers{Clients: tokens(t, clientToken)})
	for _, path := range []string{"/v1/locks/k?access_token=" + clientToken, "/v1/locks/k?Authorization=Bearer%20" + clientToken} {
		got := s.send(t, "GET", path, "")
		require.Equal(t, 401, got.status)
		require.NotContains(t, s.log.String()+got.body, clientToken)
	}
	// With the right header it is a parameter that nobody knows, and still not repeated.
	got := s.send(t, "GET", "/v1/locks/k?access_token="+clientToken, "", "Authorization", "Bearer "+clientToken)
	require.Equal(t, 400, got.status)
	require.NotContains(t, s.log.String()+got.body, clientToken)
}

func TestClientsTokenMakesClientsCallsAndAnOperatorsTokenAll(t *testing.T) {
	t.Parallel()
	s := serveTo(t, &fakeStore{}, httpapi.Callers{Clients: tokens(t, clientToken), Operators: tokens(t, operatorToken)})
	for name, r := range contract() {
		require.Equal(t, r.status, s.as(t, r, "Authorization", "bearer "+operatorToken).status, name)
		got := s.as(t, r, "Authorization", "Bearer "+clientToken)
		if !isOperators(name) {
			require.Equal(t, r.status, got.status, name)
			continue
		}
		require.Equal(t, 403, got.status, name)
		require.Equal(t, lockapi.CodeForbidden, got.envelope.Code)
		require.Contains(t, got.envelope.Message, "admin listener")
	}
	require.Equal(t, map[string]float64{"operator_needed": 3}, s.refusals(t))
	require.Equal(t, 3, strings.Count(s.log.String(), `"event":"operator_called"`))
	require.Contains(t, s.log.String(), `"caller":"operator token"`)
	require.NotContains(t, s.log.String(), "token-0123456789")
	// Strangers learn nothing about which calls there are.
	require.Equal(t, 401, s.send(t, "GET", "/nowhere", "").status)
	require.Equal(t, 404, s.send(t, "GET", "/nowhere", "", "Authorization", "Bearer "+clientToken).status)
}

func TestWhoMayDoWhatWithEachSetting(t *testing.T) {
	t.Parallel()
	clients, operators := tokens(t, clientToken), tokens(t, operatorToken)
	for name, c := range map[string]struct {
		callers          httpapi.Callers
		header           string
		client, operator int // the statuses of a client's call and of an operator's
	}{
		"nothing set":                            {httpapi.Callers{}, "", 200, 200},
		"nothing set, and a token all the same":  {httpapi.Callers{}, "Bearer anything", 200, 200},
		"clients' only, with it":                 {httpapi.Callers{Clients: clients}, "Bearer " + clientToken, 200, 403},
		"clients' only, with the other":          {httpapi.Callers{Clients: clients}, "Bearer " + operatorToken, 401, 401},
		"operators' only, with none":             {httpapi.Callers{Operators: operators}, "", 200, 403},
		"operators' only, with it":               {httpapi.Callers{Operators: operators}, "Bearer " + operatorToken, 200, 200},
		"operators' only, with a wrong one":      {httpapi.Callers{Operators: operators}, "Bearer " + clientToken, 401, 401},
		"operators' only, with one that's empty": {httpapi.Callers{Operators: operators}, "Bearer ", 401, 401},
	} {
		s := serveTo(t, &fakeStore{}, c.callers)
		var headers []string
		if c.header != "" {
			headers = []string{"Authorization", c.header}
		}
		require.Equal(t, c.client, s.as(t, contract()["inspect"], headers...).status, name)
		require.Equal(t, c.operator, s.as(t, contract()["revoke"], headers...).status, name)
		require.Equal(t, c.operator, s.as(t, contract()["list_locks"], headers...).status, name)
	}
}

// On the admin listener operators need no token, as long as strangers can't reach it.
func TestAdminListenerHasOperatorsCallsOnly(t *testing.T) {
	t.Parallel()
	ask := func(s *server, r request, headers ...string) (status int, body string) {
		admin := httptest.NewServer(s.api.Operators())
		defer admin.Close()
		sent, err := http.NewRequestWithContext(t.Context(), r.method, admin.URL+r.path, strings.NewReader(r.body))
		require.NoError(t, err)
		sent.Header.Set("X-Owner-Id", "w")
		sent.Header.Set("X-Fencing-Token", "7")
		for i := 0; i < len(headers); i += 2 {
			sent.Header.Add(headers[i], headers[i+1])
		}
		response, err := http.DefaultClient.Do(sent)
		require.NoError(t, err)
		defer func() { require.NoError(t, response.Body.Close()) }()
		data, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, []string{"application/json; charset=utf-8"}, response.Header.Values("Content-Type"))
		return response.StatusCode, string(data)
	}
	open := serveTo(t, &fakeStore{}, httpapi.Callers{Clients: tokens(t, clientToken), Operators: tokens(t, operatorToken), AdminIsOpen: true})
	exposed := serveTo(t, &fakeStore{}, httpapi.Callers{Clients: tokens(t, clientToken), Operators: tokens(t, operatorToken)})
	for name, r := range contract() {
		status, body := ask(open, r)
		if !isOperators(name) {
			require.Equal(t, 404, status, name)
			continue
		}
		require.Equal(t, r.status, status, name)
		require.True(t, json.Valid([]byte(body)))
		status, _ = ask(exposed, r)
		require.Equal(t, 401, status, name)
		status, _ = ask(exposed, r, "Authorization", "Bearer "+clientToken)
		require.Equal(t, 403, status, name)
		status, _ = ask(exposed, r, "Authorization", "Bearer "+operatorToken)
		require.Equal(t, r.status, status, name)
	}
	require.Contains(t, open.log.String(), `"caller":"admin listener"`)
	require.Contains(t, open.log.String(), `"remote":"127.0.0.1:`)

	revoke := contract()["revoke"]
	revoke.body = `{"operator":"op","reason":"` + strings.Repeat("x", 65<<10) + `"}`
	status, body := ask(open, revoke)
	require.Equal(t, 413, status)
	require.Contains(t, body, lockapi.CodeBodyTooLarge)
	revoke.body = `{"operator":"op"}`
	status, body = ask(open, revoke)
	require.Equal(t, 400, status)
	require.Contains(t, body, "reason")
	broken := serveTo(t, &fakeStore{broken: true}, httpapi.Callers{AdminIsOpen: true})
	status, _ = ask(broken, contract()["revoke"])
	require.Equal(t, 500, status, "a panic is one request's fault here too")
	require.Regexp(t, `"event":"operator_called".*"status":500`, broken.log.String(), "and audited")
	require.Equal(t, 1.0, open.requests(t)["revoke 2xx"])
}
