package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	oldAdminToken = "old-admin-token-0123456789"
	newAdminToken = "new-admin-token-0123456789"
)

// adminAs asks the admin listener with the given values of Authorization.
func (f *fileSidecar) adminAs(t *testing.T, method, path, body string, authorization ...string) (int, string, http.Header) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+f.admin+path, strings.NewReader(body))
	require.NoError(t, err)
	request.Header["Authorization"] = authorization
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	page, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(page), response.Header
}

// A listener that others than this machine can reach asks for a token, on every page but those of supervisors.
func TestAdminListenerForOthersAsksForAToken(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, resource(t, nil))
	tokens := filepath.Join(t.TempDir(), "admin.token")
	require.NoError(t, os.WriteFile(tokens, []byte(oldAdminToken+"\n"), 0o600))
	text := strings.Replace(fileConfig, `admin: { listen: "127.0.0.1:0" }`, `admin: { listen: "127.0.0.1:0", token_file: `+tokens+` }`, 1)
	rewrite(t, f.config, text)
	f.start(t)

	for _, path := range []string{"/livez", "/readyz"} {
		status, page, _ := f.adminAs(t, http.MethodGet, path, "")
		require.Equal(t, http.StatusOK, status, page)
	}
	pages := []struct{ method, path, body string }{
		{http.MethodGet, "/metrics", ""},
		{http.MethodGet, "/config", ""},
		{http.MethodGet, "/routes", ""},
		{http.MethodGet, "/marks?guard=doc&key=a", ""},
		{http.MethodGet, "/inflight", ""},
		{http.MethodPost, "/inflight/7/settle", `{"operator":"o","reason":"because"}`},
		{http.MethodPost, "/marks/raise", `{"guard":"doc","key":"a","token":99,"operator":"o","reason":"because"}`},
		{http.MethodGet, "/livez/../config", ""},
		{http.MethodGet, "//livez", ""},
		{http.MethodGet, "/livez/", ""},
		{http.MethodGet, "/nothing", ""},
	}
	for _, page := range pages {
		for name, authorization := range map[string][]string{
			"none": nil, "wrong": {"Bearer " + newAdminToken}, "not bearer": {"Basic " + oldAdminToken}, "too short": {"Bearer x"}, "bare": {oldAdminToken},
			"twice": {"Bearer " + oldAdminToken, "Bearer " + oldAdminToken},
		} {
			status, answer, header := f.adminAs(t, page.method, page.path, page.body, authorization...)
			require.Equal(t, http.StatusUnauthorized, status, "%s %s: %s", page.path, name, answer)
			require.Equal(t, "Bearer", header.Get("WWW-Authenticate"))
			require.NotContains(t, answer, oldAdminToken)
		}
	}
	_, answer, _ := f.adminAs(t, http.MethodGet, "/marks?guard=doc&key=a", "", "Bearer "+oldAdminToken)
	require.Contains(t, answer, `"found":false`, "a refused POST raised nothing")
	_, metrics, _ := f.adminAs(t, http.MethodGet, "/metrics", "", "bearer "+oldAdminToken)
	require.Contains(t, metrics, `admin_requests_refused_total{reason="token_missing"} 11`)
	require.Contains(t, metrics, `admin_requests_refused_total{reason="token_wrong"} 11`)
	require.Contains(t, metrics, `admin_requests_refused_total{reason="token_malformed"} 44`)
	refused := f.Events("caller_refused")
	require.Len(t, refused, 66)
	for _, field := range []string{"reason", "call", "remote"} {
		require.NotEmpty(t, refused[0].Text(field))
	}

	// Rotation: both, then the new one alone; a broken file changes nothing.
	works := func(token string) bool {
		status, _, _ := f.adminAs(t, http.MethodGet, "/config", "", "Bearer "+token)
		return status == http.StatusOK
	}
	require.NoError(t, os.WriteFile(tokens, []byte(oldAdminToken+"\n"+newAdminToken+"\n"), 0o600))
	f.eventually(t, "the new token works", func() bool { return works(newAdminToken) })
	require.True(t, works(oldAdminToken))
	require.NoError(t, os.WriteFile(tokens, []byte(newAdminToken+"\n"), 0o600))
	f.eventually(t, "the old token doesn't work any more", func() bool { return !works(oldAdminToken) })
	require.NoError(t, os.WriteFile(tokens, []byte("short\n"), 0o600))
	f.eventually(t, "the broken file is refused", func() bool { return len(f.Events("config_rejected")) > 0 })
	require.True(t, works(newAdminToken))
	require.False(t, works("short"))
	log, err := os.ReadFile(f.LogFile())
	require.NoError(t, err)
	for _, token := range []string{oldAdminToken, newAdminToken} {
		require.NotContains(t, string(log), token)
	}
}

func TestAdminTokenFileThatOthersMayReadStopsTheStart(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, "http://127.0.0.1:1")
	tokens := filepath.Join(t.TempDir(), "admin.token")
	require.NoError(t, os.WriteFile(tokens, []byte(oldAdminToken+"\n"), 0o600))
	require.NoError(t, os.Chmod(tokens, 0o644))
	rewrite(t, f.config, strings.Replace(fileConfig, `admin: { listen: "127.0.0.1:0" }`, `admin: { listen: ":0", token_file: `+tokens+` }`, 1))
	code, output := run(t, f.env, "run", "-c", f.config)
	require.Equal(t, 1, code, output)
	require.Contains(t, output, "admin.token_file")
	require.Contains(t, output, "chmod 0640")
}
