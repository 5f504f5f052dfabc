package httpapi

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/credential"
	"fenceline/internal/httperr"
	"fenceline/internal/httpserver"
	"fenceline/lockd/lockapi"
)

// Callers says who may call. Whatever is set is asked of every caller; where nothing is, nobody is asked who they are, and whoever reaches the
// listener may do everything.
type Callers struct {
	// Clients are the tokens of clients; nil: they need none.
	Clients *credential.Source[credential.Tokens]
	// Operators are the tokens with which one may also revoke and list. Once anything here is set, these calls need one of them.
	Operators *credential.Source[credential.Tokens]
	// Authority is who issues client certificates; nil: clients need none.
	Authority *credential.Source[credential.Authority]
	// AdminIsOpen says that whoever reaches the admin listener is an operator, since strangers can't reach it.
	AdminIsOpen bool
}

// ask says whether callers are asked who they are.
func (c Callers) ask() bool { return c.Clients != nil || c.Operators != nil || c.Authority != nil }

// Reasons of refusals, as a metric's label and in events.
const (
	reasonNoToken        = "token_missing"
	reasonMalformed      = "token_malformed"
	reasonWrongToken     = "token_wrong"
	reasonNoCertificate  = "certificate_missing"
	reasonBadCertificate = "certificate_refused"
	reasonHandshake      = "handshake_failed"
	reasonNoOperator     = "operator_needed"
)

// caller is who sent a request, as far as it is known.
type caller struct {
	operator bool
	name     string // for the audit: where the right to call comes from, and the certificate's names
}

// refusedCaller is a refusal with its reason.
type refusedCaller struct {
	answer *httperr.Error
	reason string
}

// Error is the answer's text.
func (r *refusedCaller) Error() string { return r.answer.Error() }

// Unwrap returns the answer.
func (r *refusedCaller) Unwrap() error { return r.answer }

func unauthenticated(reason, format string, args ...any) error {
	return &refusedCaller{answer(lockapi.CodeUnauthenticated, format, args...), reason}
}

// identify finds out who calls, or refuses with 401.
func (a *API) identify(c *call) (caller, error) {
	who := caller{operator: !a.callers.ask(), name: "anybody"}
	if c.admin && a.callers.AdminIsOpen {
		return caller{operator: true, name: "admin listener"}, nil
	}
	if a.callers.Authority != nil && !c.admin {
		name, err := a.certificateName(c.Conn())
		if err != nil {
			return who, err
		}
		who.name = name
	}
	if a.callers.Clients == nil && a.callers.Operators == nil {
		return who, nil
	}
	token, err := bearer(c)
	if err != nil {
		return who, err
	}
	if token == "" && a.callers.Clients == nil {
		return who, nil
	}
	client := a.callers.Clients != nil && a.callers.Clients.Get().Has(token)
	operator := a.callers.Operators != nil && a.callers.Operators.Get().Has(token)
	switch {
	case token == "":
		return who, unauthenticated(reasonNoToken, "send a token that lockd knows as Authorization: Bearer")
	case operator:
		who.operator, who.name = true, join(who.name, "operator token")
	case client:
		who.name = join(who.name, "client token")
	default:
		return who, unauthenticated(reasonWrongToken, "lockd doesn't know this token")
	}
	return who, nil
}

func join(name, more string) string {
	if name == "anybody" {
		return more
	}
	return name + ", " + more
}

// bearer returns the token of the one header Authorization, or "" when there is none. A token anywhere else, as in a query parameter, isn't looked at.
func bearer(c *call) (string, error) {
	values := c.Request.Header.PeekAll("Authorization")
	switch len(values) {
	case 0:
		return "", nil
	case 1:
	default:
		return "", unauthenticated(reasonMalformed, "the header Authorization stands %d times, want once", len(values))
	}
	scheme, token, _ := strings.Cut(string(values[0]), " ")
	if !strings.EqualFold(scheme, "bearer") || !credential.ValidToken(token) {
		return "", unauthenticated(reasonMalformed, "the header Authorization isn't Bearer and a token")
	}
	return token, nil
}

// verified is what is remembered of a connection: which authority has accepted its certificate.
type verified struct {
	authority *credential.Authority
	name      string
}

// certificateName returns the names in the connection's certificate. It was verified in the handshake, and is again after every change of
// the authority's file; whether its time is over is looked at each time.
func (a *API) certificateName(connection net.Conn) (string, error) {
	secured, ok := connection.(*httpserver.TLSConn)
	if !ok {
		return "", unauthenticated(reasonNoCertificate, "this call needs a client certificate")
	}
	chain := secured.ConnectionState().PeerCertificates
	if len(chain) == 0 {
		return "", unauthenticated(reasonNoCertificate, "this call needs a client certificate")
	}
	authority := a.callers.Authority.Current()
	known, ok := secured.Memo.(verified)
	if !ok || known.authority != authority || time.Now().After(chain[0].NotAfter) {
		if err := authority.Verify(chain); err != nil {
			return "", unauthenticated(reasonBadCertificate, "the client certificate isn't accepted: %s", problem(err))
		}
		known = verified{authority, names(chain[0])}
		secured.Memo = known
	}
	return known.name, nil
}

// names are the subject and the alternative names of a certificate, cut to a length that a log can bear.
func names(certificate *x509.Certificate) string {
	all := []string{"CN=" + certificate.Subject.CommonName}
	for _, name := range certificate.DNSNames {
		all = append(all, "DNS:"+name)
	}
	for _, uri := range certificate.URIs {
		all = append(all, "URI:"+uri.String())
	}
	for _, address := range certificate.EmailAddresses {
		all = append(all, "email:"+address)
	}
	return fmt.Sprintf("certificate %.256s", strings.Join(all, " "))
}

// problem says what is wrong with a certificate without quoting it.
func problem(err error) string {
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	_, isUnknown := errors.AsType[x509.UnknownAuthorityError](err)
	switch {
	case isInvalid && invalid.Reason == x509.Expired:
		return "its time is over or hasn't come yet"
	case isInvalid && invalid.Reason == x509.IncompatibleUsage:
		return "it isn't for clients"
	case isUnknown:
		return "its issuer isn't trusted here"
	}
	return "its chain doesn't verify"
}

// audit counts and logs refusals of callers, and every call that only operators may make. No line holds a token.
type audit struct{ refused *prometheus.CounterVec }

func newAudit(registry prometheus.Registerer) audit {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lock_callers_refused_total", Help: "Requests and connections refused because of who calls.",
	}, []string{"reason"})
	registry.MustRegister(refused)
	for _, reason := range []string{
		reasonNoToken, reasonMalformed, reasonWrongToken, reasonNoCertificate, reasonBadCertificate, reasonHandshake, reasonNoOperator,
	} {
		refused.WithLabelValues(reason) // every series is there from the start
	}
	return audit{refused}
}

// callerRefused tells of a refusal, if err is one of a caller.
func (a *API) callerRefused(c *call, err error) {
	refused, ok := errors.AsType[*refusedCaller](err)
	if !ok {
		return
	}
	a.audit.refused.WithLabelValues(refused.reason).Inc()
	if refused.answer.Status == 401 {
		c.Response.Header.Set("WWW-Authenticate", `Bearer realm="lockd"`)
	}
	a.logger.Warn("caller refused", "event", "caller_refused", "reason", refused.reason, "code", refused.answer.Code, "call", c.name,
		"caller", c.caller.name, "remote", c.remote(), "ownerId", c.owner, "traceId", c.traceID)
}

// handshakeFailed tells of a connection that didn't get as far as a request.
func (a *API) handshakeFailed(remote net.Addr, err error) {
	why, reason := problem(err), reasonHandshake
	if _, isVerification := errors.AsType[x509.CertificateInvalidError](err); isVerification || strings.Contains(why, "issuer") {
		reason = reasonBadCertificate
	} else {
		why = "no handshake" // a scanner's bytes aren't worth more
	}
	a.audit.refused.WithLabelValues(reason).Inc()
	a.logger.Warn("connection refused", "event", "caller_refused", "reason", reason, "code", "", "call", httpserver.NoRoute,
		"caller", why, "remote", remote.String(), "ownerId", "", "traceId", "")
}

// operatorCalled tells of an operator's call and what came of it.
func (a *API) operatorCalled(c *call) {
	a.logger.Info("operator called", "event", "operator_called", "call", c.name, "caller", c.caller.name, "remote", c.remote(),
		"status", c.Response.StatusCode(), "ownerId", c.owner, "traceId", c.traceID)
}

// remote is the caller's address; one on a unix socket has none.
func (c *call) remote() string {
	address := c.RemoteAddr().String()
	if address == "" || address == "@" {
		return "unix"
	}
	return address
}
