package railstub

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"fenceline/internal/daemon"
	"fenceline/internal/httpserver"
)

// fasthttp's own tickers sleep on for up to 10 s after a clean stop; they hold nothing.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// startRail serves a rail on a log file and returns its base URL.
func startRail(t *testing.T, path string, plan Plan) string {
	t.Helper()
	log, _, err := OpenLog(path)
	require.NoError(t, err)
	rail, err := New(log, plan, hclog.NewNullLogger())
	require.NoError(t, err)
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	server := rail.Server()
	daemon.ServeHTTP("api", l, server, hclog.NewNullLogger(), make(chan error, 1))
	t.Cleanup(func() {
		require.NoError(t, server.Shutdown())
		require.NoError(t, log.Close())
	})
	return "http://" + l.Addr().String()
}

func logFile(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "transfers.jsonl") }

func body(reference string) string {
	return fmt.Sprintf(`{"clientReference":%q,"amountMinor":2500,"currency":"EUR","beneficiaryRef":"ben-1"}`, reference)
}

func call(t *testing.T, method, target, content string) (status int, answer []byte, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(content))
	require.NoError(t, err)
	request.Close = true
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

func submit(t *testing.T, base, reference string) Transfer {
	t.Helper()
	status, answer, err := call(t, "POST", base+transfersPath, body(reference))
	require.NoError(t, err)
	require.Equal(t, 200, status, string(answer))
	var transfer Transfer
	require.NoError(t, json.Unmarshal(answer, &transfer))
	return transfer
}

func lookup(t *testing.T, base, query string) page {
	t.Helper()
	status, answer, err := call(t, "GET", base+transfersPath+"?"+query, "")
	require.NoError(t, err)
	require.Equal(t, 200, status, string(answer))
	var p page
	require.NoError(t, json.Unmarshal(answer, &p))
	return p
}

func recorded(t *testing.T, path string) []Transfer {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var transfers []Transfer
	for line := range strings.Lines(string(data)) {
		var transfer Transfer
		require.NoError(t, json.Unmarshal([]byte(line), &transfer))
		transfers = append(transfers, transfer)
	}
	return transfers
}

func TestSameSubmissionTwiceIsTwoTransfers(t *testing.T) {
	t.Parallel()
	path := logFile(t)
	base := startRail(t, path, Plan{})
	first, second := submit(t, base, "payout-1"), submit(t, base, "payout-1")
	require.NotEqual(t, first.RailReference, second.RailReference)
	other := submit(t, base, "payout-2")
	require.Equal(t, []Transfer{first, second, other}, recorded(t, path), "each answered transfer is in the file")
	require.Equal(t, []Transfer{first, second}, lookup(t, base, "clientReference=payout-1").Transfers)
	require.Empty(t, lookup(t, base, "clientReference=payout-3").Transfers)
}

func TestEachFaultRecordsAndAnswersAsItSays(t *testing.T) {
	t.Parallel()
	for kind, want := range map[Kind]struct{ transfers, status int }{
		KindNone:    {transfers: 1, status: 200},
		KindDecline: {transfers: 0, status: 422},
		KindDrop:    {transfers: 0, status: 0},
		KindLost:    {transfers: 1, status: 0},
		KindDouble:  {transfers: 1, status: 200},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			path := logFile(t)
			base := startRail(t, path, Plan{ByReference: map[string]Fault{"payout-1": {Kind: kind}}})
			status, answer, err := call(t, "POST", base+transfersPath, body("payout-1"))
			require.Equal(t, want.status, status, string(answer))
			require.Equal(t, want.status == 0, err != nil, "%v", err)
			require.Len(t, recorded(t, path), want.transfers)
			if kind == KindDecline {
				require.Contains(t, string(answer), codeDeclined)
			}
			submit(t, base, "payout-2") // others are untouched
		})
	}
}

func TestDoubleAnswerIsTwoWholeResponsesOnOneConnection(t *testing.T) {
	t.Parallel()
	base := startRail(t, logFile(t), Plan{Chances: map[Kind]float64{KindDouble: 1}})
	address, err := url.Parse(base)
	require.NoError(t, err)
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address.Host)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: rail\r\nContent-Length: %d\r\n\r\n%s", transfersPath, len(body("p")), body("p"))
	require.NoError(t, err)
	reader := bufio.NewReader(c)
	for range 2 {
		response, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, 200, response.StatusCode)
	}
	_, err = reader.ReadByte()
	require.ErrorIs(t, err, io.EOF)
}

func TestLatencyPassesAfterTheRecordAndBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	path := logFile(t)
	base := startRail(t, path, Plan{Latency: time.Hour, ByReference: map[string]Fault{"quick": {Kind: KindNone}, "slow": {Kind: KindNone, Latency: time.Second}}})
	submit(t, base, "quick") // its own fault replaces the general latency
	answered := make(chan error, 1)
	go func() {
		_, _, err := call(t, "POST", base+transfersPath, body("slow"))
		answered <- err
	}()
	require.Eventually(t, func() bool {
		return len(lookup(t, base, "clientReference=slow").Transfers) == 1
	}, 5*time.Second, time.Millisecond)
	select {
	case err := <-answered:
		require.Fail(t, "answered before its latency", "%v", err)
	default:
	}
	require.NoError(t, <-answered)
}

func TestChanceIsRepeatable(t *testing.T) {
	t.Parallel()
	draw := func() (kinds []Kind) {
		c := newChooser(Plan{Seed: 7, Chances: map[Kind]float64{KindDecline: 0.2, KindDrop: 0.2, KindLost: 0.2, KindDouble: 0.2}})
		for range 200 {
			kinds = append(kinds, c.choose("x").Kind)
		}
		return kinds
	}
	first := draw()
	require.Equal(t, first, draw())
	for _, kind := range append(kinds(), KindNone) {
		require.Contains(t, first, kind)
	}
}

func TestRestartReadsTheLogAndGoesOn(t *testing.T) {
	t.Parallel()
	path := logFile(t)
	first := submit(t, startRail(t, path, Plan{}), "payout-1")
	again := startRail(t, path, Plan{})
	second := submit(t, again, "payout-1")
	require.Equal(t, []Transfer{first, second}, lookup(t, again, "clientReference=payout-1").Transfers)
}

func TestUnfinishedLastLineIsCutOffAndAnyOtherFaultIsNamed(t *testing.T) {
	t.Parallel()
	path := logFile(t)
	log, _, err := OpenLog(path)
	require.NoError(t, err)
	require.NoError(t, log.Append(Transfer{RailReference: "r1", ClientReference: "p1", AmountMinor: 1, Currency: "EUR", BeneficiaryRef: "b"}))
	require.NoError(t, log.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(path, append(whole, `{"railReference":"r2"`...), 0o600))
	log, dropped, err := OpenLog(path)
	require.NoError(t, err)
	require.EqualValues(t, 21, dropped)
	transfers, _, err := log.Page("", "", 10)
	require.NoError(t, err)
	require.Len(t, transfers, 1)
	require.NoError(t, log.Close())
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, whole, now)

	for _, bad := range []string{"nonsense\n", "{}\n", strings.Repeat("x", maxLine+1)} {
		require.NoError(t, os.WriteFile(path, append(whole, bad...), 0o600))
		_, _, err = OpenLog(path)
		require.ErrorContains(t, err, "line 2")
	}
	_, _, err = OpenLog(filepath.Join(t.TempDir(), "missing", "log"))
	require.ErrorContains(t, err, "open transfer log")
}

func TestTransferThatCannotBeRecordedIsNotConfirmed(t *testing.T) {
	t.Parallel()
	log, _, err := OpenLog(logFile(t))
	require.NoError(t, err)
	rail, err := New(log, Plan{}, hclog.NewNullLogger())
	require.NoError(t, err)
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	server := rail.Server()
	daemon.ServeHTTP("api", l, server, hclog.NewNullLogger(), make(chan error, 1))
	defer func() { require.NoError(t, server.Shutdown()) }()
	require.NoError(t, log.Close()) // from here on every write fails
	for range 2 {
		status, answer, err := call(t, "POST", "http://"+l.Addr().String()+transfersPath, body("p"))
		require.NoError(t, err)
		require.Equal(t, 500, status)
		require.Contains(t, string(answer), codeInternal)
	}
}

func TestLookupGivesBoundedPagesInOrder(t *testing.T) {
	t.Parallel()
	base := startRail(t, logFile(t), Plan{})
	var want []string
	for i := range 5 {
		want = append(want, submit(t, base, fmt.Sprintf("payout-%d", i%2)).RailReference)
	}
	var got []string
	cursor, pages := "", 0
	for {
		p := lookup(t, base, "limit=2&cursor="+cursor)
		for _, transfer := range p.Transfers {
			got = append(got, transfer.RailReference)
		}
		pages++
		if cursor = p.NextCursor; cursor == "" {
			break
		}
	}
	require.Equal(t, want, got)
	require.Equal(t, 3, pages)
	require.Empty(t, lookup(t, base, "limit=5").NextCursor, "no cursor when nothing is left")
	require.NotEmpty(t, lookup(t, base, "limit=4").NextCursor)
	exact := lookup(t, base, "clientReference=payout-1&limit=2")
	require.Len(t, exact.Transfers, 2)
	require.Empty(t, exact.NextCursor)
}

func TestMalformedRequestIsRefusedAndNothingIsRecorded(t *testing.T) {
	t.Parallel()
	path := logFile(t)
	base := startRail(t, path, Plan{})
	submit(t, base, "p")
	for _, bad := range []string{
		``, `[]`, `{"clientReference":"p"`, `{"clientReference":"p","amountMinor":1,"currency":"EUR","beneficiaryRef":"b","x":1}`,
		`{"clientReference":"","amountMinor":1,"currency":"EUR","beneficiaryRef":"b"}`,
		`{"clientReference":"p","amountMinor":0,"currency":"EUR","beneficiaryRef":"b"}`,
		`{"clientReference":"p","amountMinor":-5,"currency":"EUR","beneficiaryRef":"b"}`,
		`{"clientReference":"p","amountMinor":1.5,"currency":"EUR","beneficiaryRef":"b"}`,
		`{"clientReference":"p","amountMinor":9223372036854775808,"currency":"EUR","beneficiaryRef":"b"}`,
		`{"clientReference":"p","amountMinor":1,"amountMinor":2,"currency":"EUR","beneficiaryRef":"b"}`,
		`{"clientReference":"p","amountMinor":1,"currency":"eur","beneficiaryRef":"b"}`,
		`{"clientReference":"p","amountMinor":1,"currency":"EUR","beneficiaryRef":"b\u0000"}`,
		`{"clientReference":"` + strings.Repeat("p", 65) + `","amountMinor":1,"currency":"EUR","beneficiaryRef":"b"}`,
	} {
		status, answer, err := call(t, "POST", base+transfersPath, bad)
		require.NoError(t, err)
		require.Equal(t, 400, status, bad)
		require.Contains(t, string(answer), codeValidation)
	}
	for query, want := range map[string]int{
		"limit=0": 400, "limit=501": 400, "limit=x": 400, "cursor=1": 400, "cursor=-1": 400, "cursor=99999": 400, "cursor=x": 400, "limit=500": 200,
	} {
		status, _, err := call(t, "GET", base+transfersPath+"?"+query, "")
		require.NoError(t, err)
		require.Equal(t, want, status, query)
	}
	status, _, err := call(t, "DELETE", base+transfersPath, "")
	require.NoError(t, err)
	require.Equal(t, 405, status)
	status, _, err = call(t, "GET", base+"/v1/other", "")
	require.NoError(t, err)
	require.Equal(t, 404, status)
	status, _, err = call(t, "POST", base+transfersPath, strings.Repeat("x", httpserver.MaxBody+1))
	require.NoError(t, err)
	require.Equal(t, 413, status)
	require.Len(t, recorded(t, path), 1)
}

func TestPlanThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	for _, plan := range []Plan{
		{Latency: -1},
		{Chances: map[Kind]float64{KindDrop: 1.1}},
		{Chances: map[Kind]float64{KindDrop: -0.1}},
		{Chances: map[Kind]float64{KindDrop: 0.6, KindLost: 0.6}},
	} {
		require.Error(t, plan.Validate())
	}
	for text, want := range map[string]Fault{
		"p=lost": {Kind: KindLost}, "p=none:2s": {Kind: KindNone, Latency: 2 * time.Second}, "p=double:0s": {Kind: KindDouble},
	} {
		reference, fault, err := ParseFault(text)
		require.NoError(t, err)
		require.Equal(t, "p", reference)
		require.Equal(t, want, fault)
	}
	for _, bad := range []string{"", "p", "=lost", "p=", "p=explode", "p=lost:", "p=lost:-1s", "p=lost:soon"} {
		_, _, err := ParseFault(bad)
		require.Error(t, err, bad)
	}
}
