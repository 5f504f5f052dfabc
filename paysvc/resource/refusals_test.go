package resource_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/paysvc/payapi"
)

func TestTokenThatIsNoTokenIsRefusedAndNothingHappens(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 2500)
	for name, headers := range map[string][]string{
		"missing":      {},
		"empty":        {payapi.HeaderToken, ""},
		"zero":         {payapi.HeaderToken, "0"},
		"signed":       {payapi.HeaderToken, "+5"},
		"negative":     {payapi.HeaderToken, "-5"},
		"leading zero": {payapi.HeaderToken, "05"},
		"2^63":         {payapi.HeaderToken, "9223372036854775808"},
		"hexadecimal":  {payapi.HeaderToken, "0x5"},
		"list":         {payapi.HeaderToken, "5, 6"},
		"fraction":     {payapi.HeaderToken, "5.0"},
		"twice":        {payapi.HeaderToken, "5", payapi.HeaderToken, "5"},
	} {
		headers = append(headers, payapi.HeaderOwner, "a")
		b.claim(p.PayoutID, "PENDING", headers...).refused(t, 400, payapi.CodeInvalidToken)
		e := b.post(p.PayoutID, headers...).refused(t, 400, payapi.CodeInvalidToken)
		require.Contains(t, e.Message, payapi.HeaderToken, name)
	}
	require.Equal(t, "PENDING", b.payout(p.PayoutID).State)
	require.EqualValues(t, opening, b.account(payer).BalanceMinor)
	require.Equal(t, 200, b.claim(p.PayoutID, "PENDING", holder("a", 1<<63-1)...).status, "the highest token is one")
}

func TestOwnerIsWantedOnceAndBounded(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 2500)
	for _, headers := range [][]string{
		{},
		{payapi.HeaderOwner, ""},
		{payapi.HeaderOwner, strings.Repeat("o", 65)},
		{payapi.HeaderOwner, "a", payapi.HeaderOwner, "b"},
	} {
		headers = append(headers, payapi.HeaderToken, "5", payapi.HeaderIdempotencyKey, "k")
		e := b.claim(p.PayoutID, "PENDING", headers...).refused(t, 400, payapi.CodeValidationFailed)
		require.Contains(t, e.Message, payapi.HeaderOwner)
		b.do("POST", payapi.PathPayouts, `{}`, headers...).refused(t, 400, payapi.CodeValidationFailed)
	}
	require.Equal(t, 200, b.claim(p.PayoutID, "PENDING", holder(strings.Repeat("o", 64), 5)...).status)
}

func TestBodyThatIsNotTheExpectedObjectIsRefused(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 2500)
	create := fmt.Sprintf(`{"accountId":%q,"amountMinor":1,"currency":"EUR"}`, payer)
	for _, one := range []struct{ path, body, says string }{
		{"/claim", ``, "empty"},
		{"/claim", `[]`, "JSON object"},
		{"/claim", `{"expectedState":`, "valid JSON"},
		{"/claim", `{"expectedState":"PENDING"} {}`, "valid JSON"},
		{"/claim", `{"expectedState":"PENDING","expectedState":"CLAIMED"}`, "twice"},
		{"/claim", `{"ExpectedState":"PENDING"}`, "ExpectedState"},
		{"/claim", `{"expectedState":"PENDING","force":true}`, "force"},
		{"/claim", `{"expectedState":5}`, "expectedState"},
		{"/claim", `{}`, "state"},
		{"/claim", `{"expectedState":"pending"}`, "state"},
		{"/post", `{"railReference":"r"}`, "submissionId"},
		{"/post", `{"railReference":"","submissionId":"7f3e2d1c-0000-4000-8000-000000000000"}`, "railReference"},
		{"/post", `{"railReference":"a\u0000","submissionId":"7f3e2d1c-0000-4000-8000-000000000000"}`, "railReference"},
		{"/post", `{"railReference":"r","submissionId":"1"}`, "submissionId"},
		{"", `{}`, "accountId"},
		{"", strings.Replace(create, payer, "1", 1), "accountId"},
		{"", strings.Replace(create, ":1,", ":0,", 1), "amountMinor"},
		{"", strings.Replace(create, ":1,", ":-1,", 1), "amountMinor"},
		{"", strings.Replace(create, ":1,", ":1.5,", 1), "amountMinor"},
		{"", strings.Replace(create, ":1,", ":9223372036854775808,", 1), "amountMinor"},
		{"", strings.Replace(create, ":1,", `:"1",`, 1), "amountMinor"},
		{"", strings.Replace(create, "EUR", "eur", 1), "currency"},
		{"", strings.Replace(create, "EUR", "EURO", 1), "currency"},
		{"", strings.Replace(create, "EUR", "XXX", 1), "currency"},
	} {
		path := payapi.PathPayouts
		if one.path != "" {
			path += "/" + p.PayoutID + one.path
		}
		e := b.do("POST", path, one.body, append(holder("a", 5), payapi.HeaderIdempotencyKey, "k")...).refused(t, 400, payapi.CodeValidationFailed)
		require.Contains(t, e.Message, one.says, one.body)
		require.False(t, e.RetrySafe)
	}
	require.Equal(t, p, b.payout(p.PayoutID))
	b.do("POST", payapi.PathPayouts, create, payapi.HeaderOwner, "a").refused(t, 400, payapi.CodeValidationFailed) // no key
	b.do("POST", payapi.PathPayouts, create, payapi.HeaderOwner, "a", payapi.HeaderIdempotencyKey, strings.Repeat("k", 129)).refused(t, 400, payapi.CodeValidationFailed)
}

func TestQueryIsStrict(t *testing.T) {
	b := newBench(t)
	first := b.createFor(payer, 1)
	b.createFor(payer, 1)
	var page payapi.PayoutPage
	b.do("GET", "/v1/payouts?limit=1&state=PENDING", "").into(t, 200, &page)
	require.Equal(t, first.PayoutID, page.Payouts[0].PayoutID)
	good := page.NextCursor
	for _, query := range []string{
		"limit=0", "limit=501", "limit=-1", "limit=x", "limit=1.0", "limit=99999999999999999999", "limit=1&limit=2",
		"state=pending", "state=LOST", "accountId=1", "accountId=%7B" + payer + "%7D", "sort=amount", "%zz=1", "limit=1;state=POSTED",
		"cursor=x", "cursor=" + good[:len(good)-1], "cursor=" + good + "A", "cursor=AA" + good[2:], "cursor=" + strings.Repeat("_", len(good)), "cursor=" + good + "%3D",
	} {
		b.do("GET", "/v1/payouts?"+query, "").refused(t, 400, payapi.CodeValidationFailed)
	}
	for _, query := range []string{"limit=1", "limit=500", "limit=&state=&accountId=&cursor=", "cursor=" + good} {
		b.do("GET", "/v1/payouts?"+query, "").into(t, 200, &page)
	}
	b.do("GET", "/v1/accounts/"+payer+"?x=1", "").refused(t, 400, payapi.CodeValidationFailed)
}

func TestUnknownThingsAndCallsAreToldApart(t *testing.T) {
	b := newBench(t)
	unknown := uuid.NewString()
	b.do("GET", "/v1/payouts/"+unknown, "").refused(t, 404, payapi.CodePayoutNotFound)
	b.claim(unknown, "PENDING", holder("a", 5)...).refused(t, 404, payapi.CodePayoutNotFound)
	b.post(unknown, holder("a", 5)...).refused(t, 404, payapi.CodePayoutNotFound)
	b.do("GET", "/v1/accounts/"+unknown, "").refused(t, 404, payapi.CodeAccountNotFound)
	for _, path := range []string{"/", "/v1", "/v1/payouts/", "/v1/payouts//claim", "/v1/payouts/" + unknown + "/", "/v1/payouts/" + unknown + "/cancel", "/v1//payouts", "/v1/payouts%2F" + unknown, "/metrics"} {
		b.do("GET", path, "").refused(t, 404, payapi.CodeNotFound)
	}
	for _, id := range []string{"1", "x", "%7B" + unknown + "%7D"} {
		b.do("GET", "/v1/payouts/"+id, "").refused(t, 400, payapi.CodeValidationFailed)
		b.do("GET", "/v1/accounts/"+id, "").refused(t, 400, payapi.CodeValidationFailed)
	}
	for path, allow := range map[string]string{
		payapi.PathPayouts: "GET, POST", "/v1/payouts/" + unknown: "GET", "/v1/payouts/" + unknown + "/claim": "POST",
		"/v1/payouts/" + unknown + "/post": "POST", "/v1/accounts/" + unknown: "GET",
	} {
		a := b.do("DELETE", path, "")
		a.refused(t, 405, payapi.CodeMethodNotAllowed)
		require.Equal(t, allow, a.header.Get("Allow"))
	}
	head := b.do("HEAD", payapi.PathPayouts, "")
	require.Equal(t, 200, head.status)
	require.Empty(t, head.body)
}

func TestOversizeIsRefused(t *testing.T) {
	b := newBench(t)
	b.do("POST", payapi.PathPayouts, strings.Repeat(" ", 64<<10+1)).refused(t, 413, payapi.CodeBodyTooLarge)
	b.do("GET", payapi.PathPayouts, "", "X-Large", strings.Repeat("x", 17<<10)).refused(t, 431, payapi.CodeHeadTooLarge)
}

// raw sends bytes that net/http wouldn't.
func (b *bench) raw(request string) (status int) {
	b.t.Helper()
	var d net.Dialer
	c, err := d.DialContext(b.t.Context(), "tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = c.Close() })
	require.NoError(b.t, c.SetDeadline(time.Now().Add(5*time.Second)))
	_, err = c.Write([]byte(request))
	require.NoError(b.t, err)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(b.t, err)
	require.NoError(b.t, response.Body.Close())
	return response.StatusCode
}

func TestNonsenseIsAnswered(t *testing.T) {
	b := newBench(t)
	require.Equal(t, 400, b.raw("NONSENSE\r\n\r\n"))
	p := b.createFor(payer, 1)
	status := b.raw("POST /v1/payouts/" + p.PayoutID + "/claim HTTP/1.1\r\nHost: x\r\nX-Owner-Id: a\x01b\r\nX-Fencing-Token: 5\r\nContent-Length: 27\r\n\r\n{\"expectedState\":\"PENDING\"}")
	require.Equal(t, 400, status)
	require.Equal(t, "PENDING", b.payout(p.PayoutID).State)
}

func TestOverflowIsUnprocessable(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 1)
	require.Equal(t, 200, b.claim(p.PayoutID, "PENDING", holder("a", 5)...).status)
	_, err := b.owner.Exec(t.Context(), "UPDATE account SET balance_minor = 9223372036854775807 WHERE account_id = $1", clearing)
	require.NoError(t, err)
	b.post(p.PayoutID, holder("a", 5)...).refused(t, 422, payapi.CodeAmountOutOfRange)
	require.EqualValues(t, opening, b.account(payer).BalanceMinor)
}

// A commit whose answer is lost is neither success nor failure, and says so.
func TestUnknownOutcomeIsItsOwnAnswer(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 1)
	for _, sql := range []string{
		`CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		 BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$`,
		`CREATE CONSTRAINT TRIGGER die AFTER INSERT OR UPDATE ON payout DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()`,
	} {
		_, err := b.owner.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	e := b.claim(p.PayoutID, "PENDING", holder("a", 5)...).refused(t, 503, payapi.CodeOutcomeUnknown)
	require.False(t, e.RetrySafe)
	require.Zero(t, e.RetryAfterMillis)
	require.Equal(t, map[string]any{"outcome": "unknown"}, e.Details)

	e = b.post(p.PayoutID, holder("a", 5)...).refused(t, 500, payapi.CodePostingIncomplete)
	require.Equal(t, true, e.Details["debited"])

	_, err := b.owner.Exec(t.Context(), "ALTER TABLE payout DISABLE TRIGGER die")
	require.NoError(t, err)
	require.Equal(t, 200, b.claim(p.PayoutID, "PENDING", holder("a", 5)...).status)
	_, err = b.owner.Exec(t.Context(), "ALTER TABLE payout ENABLE TRIGGER die")
	require.NoError(t, err)
	e = b.post(p.PayoutID, append(holder("a", 5), payapi.HeaderIdempotencyKey, "another")...).refused(t, 503, payapi.CodeOutcomeUnknown)
	require.Equal(t, map[string]any{"outcome": "unknown", "debited": true}, e.Details)
	require.False(t, e.RetrySafe)
}

func TestTraceIDOfTheCallerIsKept(t *testing.T) {
	b := newBench(t)
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	e := b.do("GET", "/nowhere", "", "traceparent", "00-"+trace+"-00f067aa0ba902b7-01").refused(t, 404, payapi.CodeNotFound)
	require.Equal(t, trace, e.TraceID)
}
