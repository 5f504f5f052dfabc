package credential_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/credential"
	"fenceline/internal/credential/credtest"
)

const (
	first  = "first-token-0123456789"
	second = "second-token-0123456789"
)

func open(path string) (*credential.Source[credential.Tokens], error) {
	return credential.Open("tokens", credential.ParseTokens, credential.File{Path: path, Private: true})
}

func TestTokensAreReadOneALine(t *testing.T) {
	t.Parallel()
	tokens, err := credential.ParseTokens([][]byte{[]byte("# of 2026\n" + first + "\r\n\n" + second)})
	require.NoError(t, err)
	for token, has := range map[string]bool{
		first: true, second: true, "": false, first + " ": false, first[:21]: false, first + "x": false, strings.ToUpper(first): false, "# of 2026": false,
	} {
		require.Equal(t, has, tokens.Has(token), token)
	}
	require.False(t, credential.Tokens{}.Has(""))
	for content, says := range map[string]string{
		"": "there is no token in it", "\n# nothing\n": "there is no token in it", "short": "line 1: want 16 to 512", first + "\n two words here \n": "line 2",
		first + " # mine": "line 1", strings.Repeat("x", 513): "line 1", strings.Repeat(first+"\n", 101): "more than 100", "pässword-0123456789": "line 1",
	} {
		_, err := credential.ParseTokens([][]byte{[]byte(content)})
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), first)
		require.NotContains(t, err.Error(), "words")
	}
}

func TestFileThatOthersMayReadIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	_, err := open(path)
	require.ErrorContains(t, err, "no such file")
	credtest.Write(t, path, first)
	for mode, fine := range map[os.FileMode]bool{0o600: true, 0o640: true, 0o644: false, 0o602: false, 0o601: false} {
		require.NoError(t, os.Chmod(path, mode))
		_, err := open(path)
		require.Equal(t, fine, err == nil, "%o", mode)
		if !fine {
			require.ErrorContains(t, err, "chmod 0640")
		}
	}
	_, err = open(t.TempDir())
	require.ErrorContains(t, err, "not a regular file")
	credtest.Write(t, path, strings.Repeat("#", 1<<20+1))
	_, err = open(path)
	require.ErrorContains(t, err, "more than")
}

// reports is what Follow has told.
type reports struct {
	mu  sync.Mutex
	all []string
}

func (r *reports) add(_ string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.all = append(r.all, "taken over")
	} else {
		r.all = append(r.all, err.Error())
	}
}

func (r *reports) get() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.all...)
}

func follow[T any](t *testing.T, source *credential.Source[T]) *reports {
	t.Helper()
	r := &reports{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); source.Follow(ctx, 5*time.Millisecond, r.add) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *reports) become(t *testing.T, n int, last string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(r.get()) >= n }, 10*time.Second, 5*time.Millisecond)
	all := r.get()
	require.Len(t, all, n)
	require.Contains(t, all[n-1], last)
}

func TestChangesAreTakenOverAndFaultsKeepTheLastGoodOne(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	credtest.Write(t, path, first)
	source, err := open(path)
	require.NoError(t, err)
	r := follow(t, source)

	credtest.Write(t, path, first+"\n"+second)
	r.become(t, 1, "taken over")
	require.True(t, source.Get().Has(first) && source.Get().Has(second), "both, while clients change over")

	for _, fault := range []struct {
		how  func()
		says string
	}{
		{func() { require.NoError(t, os.Remove(path)) }, "no such file"},
		{func() { credtest.Write(t, path, "") }, "there is no token"},
		{func() { require.NoError(t, os.Chmod(path, 0o644)) }, "chmod"},
		{func() { credtest.Write(t, path, "short") }, "line 1"},
	} {
		n := len(r.get())
		fault.how()
		r.become(t, n+1, fault.says)
		require.True(t, source.Get().Has(second))
		require.NotContains(t, strings.Join(r.get(), " "), second)
	}
	n := len(r.get())
	credtest.Write(t, path, second)
	r.become(t, n+1, "taken over")
	require.False(t, source.Get().Has(first))

	require.NoError(t, os.Remove(path))
	r.become(t, n+2, "no such file")
	credtest.Write(t, path, second) // as before: nothing to take over
	require.Never(t, func() bool { return len(r.get()) > n+2 }, 100*time.Millisecond, 10*time.Millisecond)
}

func TestKeyPairIsTakenOverAsAPair(t *testing.T) {
	t.Parallel()
	authority := credtest.NewAuthority(t)
	certificate, key := authority.Issue("old", x509.ExtKeyUsageServerAuth, time.Hour)
	newCertificate, newKey := authority.Issue("new", x509.ExtKeyUsageServerAuth, time.Hour)
	pair, err := credential.Open("tls", credential.ParseKeyPair, credential.File{Path: certificate}, credential.File{Path: key, Private: true})
	require.NoError(t, err)
	r := follow(t, pair)
	name := func() string { return pair.Get().Leaf.Subject.CommonName }
	move := func(from, to string) {
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		credtest.Write(t, to, string(content))
	}
	move(newCertificate, certificate)
	r.become(t, 1, "private key does not match")
	require.Equal(t, "old", name())
	move(newKey, key)
	r.become(t, 2, "taken over")
	require.Equal(t, "new", name())

	over, overKey := authority.Issue("over", x509.ExtKeyUsageServerAuth, -time.Minute)
	_, err = credential.Open("tls", credential.ParseKeyPair, credential.File{Path: over}, credential.File{Path: overKey})
	require.ErrorContains(t, err, "has been over since")
}

func TestAuthorityIsABundleOfCertificates(t *testing.T) {
	t.Parallel()
	one, two := credtest.NewAuthority(t), credtest.NewAuthority(t)
	bundle, err := credential.ParseAuthority([][]byte{append(one.PEM(), two.PEM()...)})
	require.NoError(t, err)
	verify := func(a *credtest.Authority, usage x509.ExtKeyUsage, validity time.Duration) error {
		certificate, key := a.Issue("worker", usage, validity)
		pair, err := tls.LoadX509KeyPair(certificate, key)
		require.NoError(t, err)
		return bundle.Verify([]*x509.Certificate{pair.Leaf})
	}
	require.NoError(t, verify(one, x509.ExtKeyUsageClientAuth, time.Hour))
	require.NoError(t, verify(two, x509.ExtKeyUsageClientAuth, time.Hour))
	require.Error(t, verify(one, x509.ExtKeyUsageClientAuth, -time.Minute))
	require.Error(t, verify(one, x509.ExtKeyUsageServerAuth, time.Hour))
	require.Error(t, verify(credtest.NewAuthority(t), x509.ExtKeyUsageClientAuth, time.Hour))
	for _, content := range []string{"", "nothing", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		_, err := credential.ParseAuthority([][]byte{[]byte(content)})
		require.Error(t, err, content)
	}
}
