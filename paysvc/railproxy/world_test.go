package railproxy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/daemon"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/migrations"
	"fenceline/paysvc/invariant"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/railproxy"
	"fenceline/paysvc/railproxy/submission"
	"fenceline/paysvc/railstub"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// railTimeout is long enough for a loaded machine and short enough to wait for.
const railTimeout = time.Second

// world is a rail-proxy under its own role, with paydb behind it and a rail before it.
type world struct {
	t       *testing.T
	proxy   string // base URL
	railLog string // file
	conn    *pgx.Conn
	owner   string // URL of the database's owner
	account uuid.UUID
	fenced  bool
	login   string // of the rail-proxy
	rail    string // base URL
	log     *syncBuffer
	counts  *counts
}

// newWorld starts everything. rail is the rail's base URL; "" starts a rail-stub with the plan.
func newWorld(t *testing.T, rail string, plan railstub.Plan) *world {
	t.Helper()
	return newWorldOn(t, pgtest.Database(t, migrations.PayDB()), rail, plan)
}

// newFencedWorld is newWorld in fenced mode.
func newFencedWorld(t *testing.T, rail string, plan railstub.Plan) *world {
	t.Helper()
	return newWorldIn(t, true, pgtest.Database(t, migrations.PayDB()), rail, plan)
}

func newWorldOn(t *testing.T, database, rail string, plan railstub.Plan) *world {
	t.Helper()
	return newWorldIn(t, false, database, rail, plan)
}

func newWorldIn(t *testing.T, fenced bool, database, rail string, plan railstub.Plan) *world {
	t.Helper()
	w := &world{t: t, fenced: fenced, log: &syncBuffer{}, counts: &counts{outcomes: map[submission.Outcome]int{}}, conn: pgtest.Connect(t, database), owner: database, account: uuid.New()}
	_, err := w.conn.Exec(t.Context(), `INSERT INTO account (account_id, currency, balance_minor) VALUES ($1, 'EUR', 100000)`, w.account)
	require.NoError(t, err)
	if rail == "" {
		w.railLog = filepath.Join(t.TempDir(), "transfers.jsonl")
		rail = startRail(t, w.railLog, plan)
	}
	w.login, w.rail = pgtest.Login(t, database, "railapp"), rail
	w.proxy = w.replica()
	return w
}

// unharmed wants every invariant that the tables and the rail's own log show to hold. The world's account has its money from nowhere, which isn't the rail-proxy's doing.
func (w *world) unharmed(after string) {
	w.t.Helper()
	admin := pgtest.Connect(w.t, w.owner)
	_, err := admin.Exec(w.t.Context(), "UPDATE account SET balance_minor = 0")
	require.NoError(w.t, err, after)
	log, err := os.Open(w.railLog)
	require.NoError(w.t, err, after)
	defer func() { _ = log.Close() }()
	transfers, err := invariant.ReadTransfers(log)
	require.NoError(w.t, err, after)
	report, err := invariant.Check(w.t.Context(), admin, invariant.Evidence{Transfers: transfers, FencedRail: w.fenced})
	require.NoError(w.t, err, after)
	require.NoError(w.t, report.Err(), after)
}

// replica starts a rail-proxy of its own over the world's database and rail, and returns its base URL.
func (w *world) replica() string {
	t := w.t
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: w.login})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	client, err := railproxy.NewClient(w.rail, time.Second, railTimeout)
	require.NoError(t, err)
	logger, err := daemon.NewLogger("rail-proxy", "info", w.log)
	require.NoError(t, err)
	service := railproxy.NewService(paydb.NewRail(pool, 3*time.Second), client, 3*time.Second, logger, w.counts)
	if w.fenced {
		service = railproxy.NewFencedService(paydb.NewFencedRail(pool, 3*time.Second), client, 3*time.Second, logger, w.counts)
	}
	server := railproxy.NewServer(service, logger)
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	daemon.ServeHTTP("api", l, server, logger, make(chan error, 1))
	t.Cleanup(func() { require.NoError(t, server.Shutdown()) })
	return "http://" + l.Addr().String()
}

func startRail(t *testing.T, path string, plan railstub.Plan) string {
	t.Helper()
	log, _, err := railstub.OpenLog(path)
	require.NoError(t, err)
	rail, err := railstub.New(log, plan, hclog.NewNullLogger())
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

// claimedPayout makes a payout of 25.00 EUR that a worker has claimed with that token.
func (w *world) claimedPayout(token int64) uuid.UUID {
	w.t.Helper()
	id := uuid.New()
	w.insertClaimed(id, token)
	return id
}

func (w *world) insertClaimed(id uuid.UUID, token int64) {
	w.t.Helper()
	_, err := w.conn.Exec(w.t.Context(), `INSERT INTO payout (payout_id, account_id, amount_minor, currency, state, claimed_by, claim_token, idempotency_key)
		VALUES ($1, $2, 2500, 'EUR', 'CLAIMED', 'worker', $3, $4)`, id, w.account, token, "key-"+id.String())
	require.NoError(w.t, err)
}

func (w *world) request(payoutID uuid.UUID) payapi.SubmissionRequest {
	return payapi.SubmissionRequest{
		PayoutID: payoutID.String(), AccountID: w.account.String(), AmountMinor: 2500, Currency: "EUR", BeneficiaryRef: "ben-1",
	}
}

// answer is a response of the rail-proxy.
type answer struct {
	status int
	body   []byte
}

func (a answer) code(t *testing.T) string { t.Helper(); return a.envelope(t).Code }

func (a answer) envelope(t *testing.T) payapi.Error {
	t.Helper()
	var e payapi.Error
	require.NoError(t, json.Unmarshal(a.body, &e), string(a.body))
	return e
}

func (w *world) submit(payoutID uuid.UUID, token int64) answer {
	w.t.Helper()
	body, err := json.Marshal(w.request(payoutID))
	require.NoError(w.t, err)
	return w.post(string(body), map[string]string{payapi.HeaderToken: fmt.Sprint(token), payapi.HeaderOwner: "worker", payapi.HeaderIdempotencyKey: "key"})
}

func (w *world) post(body string, headers map[string]string) answer {
	w.t.Helper()
	return w.call("POST", payapi.PathSubmissions, body, headers)
}

func (w *world) call(method, path, body string, headers map[string]string) answer {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.proxy+path, strings.NewReader(body))
	require.NoError(w.t, err)
	for name, value := range headers {
		for one := range strings.SplitSeq(value, "|") { // several lines of one header
			request.Header.Add(name, one)
		}
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	require.NoError(w.t, err)
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	return answer{response.StatusCode, content}
}

func (w *world) transfers() []railstub.Transfer {
	w.t.Helper()
	data, err := os.ReadFile(w.railLog)
	require.NoError(w.t, err)
	var list []railstub.Transfer
	for line := range strings.Lines(string(data)) {
		var one railstub.Transfer
		require.NoError(w.t, json.Unmarshal([]byte(line), &one))
		list = append(list, one)
	}
	return list
}

func (w *world) state(payoutID uuid.UUID) string {
	w.t.Helper()
	var state string
	require.NoError(w.t, w.conn.QueryRow(w.t.Context(), `SELECT state FROM payout WHERE payout_id = $1`, payoutID).Scan(&state))
	return state
}

// row is what rail_submission holds, ids left out.
type row struct {
	Token     int64
	Outcome   *string
	Reference *string
	Resolved  bool
}

func (w *world) rows(payoutID uuid.UUID) []row {
	w.t.Helper()
	rows, err := w.conn.Query(w.t.Context(), `SELECT presented_token, outcome, rail_reference, resolved_at IS NOT NULL FROM rail_submission WHERE payout_id = $1`, payoutID)
	require.NoError(w.t, err)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(w.t, err)
	return list
}

func (w *world) events(name string) []map[string]any {
	w.t.Helper()
	var list []map[string]any
	for line := range strings.Lines(w.log.String()) {
		var event map[string]any
		require.NoError(w.t, json.Unmarshal([]byte(line), &event))
		if event["event"] == name {
			list = append(list, event)
		}
	}
	return list
}

// counts implements railproxy.Recorder.
type counts struct {
	mu         sync.Mutex
	outcomes   map[submission.Outcome]int
	duplicates int
	fencedOut  int
	refused    int
}

func (c *counts) Submitted(o submission.Outcome) { c.mu.Lock(); defer c.mu.Unlock(); c.outcomes[o]++ }

func (c *counts) Duplicate() { c.mu.Lock(); defer c.mu.Unlock(); c.duplicates++ }

func (c *counts) FencedOut() { c.mu.Lock(); defer c.mu.Unlock(); c.fencedOut++ }

func (c *counts) TransitionRefused() { c.mu.Lock(); defer c.mu.Unlock(); c.refused++ }

// syncBuffer is a buffer that a logger and a test may use at once.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.b.String() }
