package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/process"
	"fenceline/lockd/lock"
	"fenceline/paysvc/executor"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
)

// replicas is a system with two of each: payment-resource and rail-proxy, on one paydb.
type replicas struct {
	*System
	resources, rails [2]replica
	logins           map[string]string // group → database URL
	accounts         []string
	payouts, lives   int

	one, two       *process.Process // sidecars of the story at hand
	oneURL, twoURL string
	twoAdmin       string
	clients        [2]*executor.Client
}

// replicaPatience bounds one request.
const replicaPatience = 30 * time.Second

// replica is one process of the payment system.
type replica struct {
	*process.Process
	url string
}

// startParts starts everything but the sidecars.
func (r *replicas) startParts(ctx context.Context) error {
	r.logins = map[string]string{}
	for _, group := range []string{groupResource, groupRailProxy, groupSidecarAccount, groupSidecarRail} {
		login, err := r.login(ctx, r.databases.pay, r.databases.payName, group)
		if err != nil {
			return err
		}
		r.logins[group] = login
	}
	lockdURL, err := r.login(ctx, r.databases.lock, r.databases.lockName, groupLockd)
	if err != nil {
		return err
	}
	r.bench.Progress("two replicas: starting lockd, two payment-resources, two rail-proxies, rail-stub")
	if r.lockd, _, err = r.start(ctx, daemonSpec{name: "lockd", program: "lockd", args: []string{"serve"}, env: []string{"LOCKD_DATABASE_URL=" + lockdURL}}); err != nil {
		return err
	}
	rail, _, err := r.start(ctx, daemonSpec{name: "rail-stub", program: "paysvc", args: []string{"rail-stub", "--log", r.railLog}, noAdmin: true})
	if err != nil {
		return err
	}
	for i := range 2 {
		number := strconv.Itoa(i + 1)
		if r.resources[i], err = r.startReplica(ctx, "payment-resource-"+number, groupResource, "resource"); err != nil {
			return err
		}
		if r.rails[i], err = r.startReplica(ctx, "rail-proxy-"+number, groupRailProxy, "rail-proxy", "--rail", rail); err != nil {
			return err
		}
	}
	r.resource = r.resources[1].url // for creating payouts: nobody stops that one
	r.accounts, err = payerAccounts(ctx, r.databases.pay.URL(r.databases.payName), 4)
	return err
}

func (r *replicas) startReplica(ctx context.Context, name, group string, args ...string) (replica, error) {
	url, p, err := r.start(ctx, daemonSpec{name: name, program: "paysvc", args: args, env: []string{"PAYSVC_DATABASE_URL=" + r.logins[group]}})
	return replica{p, url}, err
}

// stage is where a story is played.
type stage struct {
	stalls    replica                                             // replica 1
	old, next func(context.Context, *holder, payapi.Payout) error // A's request, and what B does
}

func (r *replicas) stage(story ReplicaStory) *stage {
	switch {
	case story.Takeover && story.Barrier:
		return &stage{r.rails[0], submitOnly(r.clients[0]), submitUnlessSubmitted(r.clients[1], r.twoURL)}
	case story.Takeover:
		return &stage{r.rails[0], submitOnly(r.clients[0]), submitUnlessSubmitted(r.clients[1], "")}
	}
	return &stage{r.resources[0], claimAgain(r.clients[0]), claimAgain(r.clients[1])}
}

// submitOnly is A's request.
func submitOnly(client *executor.Client) func(context.Context, *holder, payapi.Payout) error {
	return func(ctx context.Context, h *holder, p payapi.Payout) error {
		_, err := client.Submit(ctx, h.write(p))
		return err
	}
}

// useSidecars puts two sidecars of the story before the two replicas.
func (r *replicas) useSidecars(ctx context.Context, story ReplicaStory) error {
	r.bench.Progress("%s", story.Title)
	if err := r.startFirst(ctx, story); err != nil {
		return err
	}
	var err error
	if r.twoURL, r.two, err = r.startBefore(ctx, story, 1); err != nil {
		return err
	}
	admin, err := r.two.Address(ctx, "admin")
	r.twoAdmin = "http://" + admin
	if err != nil {
		return err
	}
	r.clients[1], err = executor.NewClient("sidecar 2", r.twoURL, replicaPatience)
	return err
}

// startFirst starts sidecar 1, also anew after it was killed. Each has an id of its own: the killed one counts as alive for a while.
func (r *replicas) startFirst(ctx context.Context, story ReplicaStory) error {
	var err error
	if r.oneURL, r.one, err = r.startBefore(ctx, story, 0); err != nil {
		return err
	}
	r.clients[0], err = executor.NewClient("sidecar 1", r.oneURL, replicaPatience)
	return err
}

// startBefore starts a sidecar before a replica.
func (r *replicas) startBefore(ctx context.Context, story ReplicaStory, i int) (string, *process.Process, error) {
	name, group, behind := "sidecar.account.yaml", groupSidecarAccount, r.resources[i].url
	if story.Takeover {
		name, group, behind = "sidecar.rail.yaml", groupSidecarRail, r.rails[i].url
	}
	config, err := r.replicaConfig(story, name)
	if err != nil {
		return "", nil, err
	}
	r.lives++
	return r.startSidecar(ctx, fmt.Sprintf("sidecar-%s-%d-life-%d", story.Name, i+1, r.lives), config, r.logins[group], behind)
}

func (r *replicas) stopSidecars(ctx context.Context) error {
	return errors.Join(r.one.Stop(ctx), r.two.Stop(ctx))
}

// replicaConfig is the project's own file with the story's order and with time limits.
func (r *replicas) replicaConfig(story ReplicaStory, name string) (string, error) {
	wait, response := "8s", "20s"
	if story.Kill {
		wait, response = "500ms", "2s" // below releaseAfter, together
	}
	return r.changedConfig(name, story.Name+".yaml", []change{
		{true, "  response_timeout: 10s\n", "  response_timeout: " + response + "\n  connect_timeout: 500ms\n"},
		// A busy machine's database isn't the story.
		{true, "postgres: { url: \"${PAYDB_URL}\" }", "postgres: { url: \"${PAYDB_URL}\", timeout: 10s }"},
		{story.Effects, heldUnsettled, "    unsettled: { " + story.Unsettled + " }\n"},
		{!story.Effects, "    order: effects\n", "    order: admissions\n"},
		{!story.Effects, heldUnsettled, ""},
		{!story.Effects, everyAnswerSettles, ""},
	}, "limits: { wait: "+wait+" }\n")
}

// freshPayout makes a payout that a first holder has claimed.
func (r *replicas) freshPayout(ctx context.Context) (payapi.Payout, error) {
	r.payouts++
	account := r.accounts[r.payouts%len(r.accounts)]
	id, err := r.createPayout(ctx, account, r.payouts)
	if err != nil {
		return payapi.Payout{}, err
	}
	first, err := r.hold(ctx, "worker-first", account)
	if err != nil {
		return payapi.Payout{}, err
	}
	defer first.end()
	direct, err := executor.NewClient("payment-resource", r.resource, replicaPatience)
	if err != nil {
		return payapi.Payout{}, err
	}
	p, err := direct.Payout(ctx, id)
	if err != nil {
		return p, err
	}
	return p, direct.Claim(ctx, first.write(p), payout.Pending)
}

// received waits until a whole request is in the replica's socket, while the replica is stopped: the sidecar has handed it over, and its
// transaction hasn't begun.
func (s *stage) received(ctx context.Context) error {
	parsed, err := url.Parse(s.stalls.url)
	if err != nil {
		return fmt.Errorf("address of the replica: %w", err)
	}
	for {
		table, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			return fmt.Errorf("look into the replica's sockets (Linux only): %w", err)
		}
		if bytesWaiting(string(table), parsed.Port()) > 0 {
			return nil
		}
		if err := poll(ctx); err != nil {
			return err
		}
	}
}

// bytesWaiting adds up what connections to a port have received and nobody has read (rx_queue; proc_net_tcp(5)).
func bytesWaiting(table, port string) int64 {
	const established = "01"
	number, _ := strconv.ParseUint(port, 10, 16)
	var sum int64
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[3] != established || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", number)) {
			continue
		}
		_, queue, _ := strings.Cut(fields[4], ":")
		n, _ := strconv.ParseInt(queue, 16, 64)
		sum += n
	}
	return sum
}

// heldUp waits until the new holder's request, or its barrier, is registered: it has closed the door to the old token, and waits.
func (r *replicas) heldUp(ctx context.Context, token lock.Token) error {
	conn, err := pgx.Connect(ctx, r.databases.pay.URL(r.databases.payName))
	if err != nil {
		return fmt.Errorf("connect to paydb: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for {
		var there bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM fence.inflight WHERE token = $1)", int64(token)).Scan(&there); err != nil {
			return fmt.Errorf("look into the register: %w", err)
		}
		if there {
			return nil
		}
		if err := poll(ctx); err != nil {
			return fmt.Errorf("wait until the request of B is held up: %w", err)
		}
	}
}

// settleKilled is what the operator does: the killed sidecar's request is listed as unsettled, the payout's own record shows that it took effect, so it
// can have no further one.
func (r *replicas) settleKilled(ctx context.Context, payoutID string, result *ReplicaResult) error {
	landed, err := r.landed(ctx, payoutID)
	if err != nil || len(landed) < 2 {
		return err // not yet
	}
	status, body, err := request(ctx, http.MethodGet, r.twoAdmin+"/inflight", nil, nil)
	if err != nil {
		return err
	}
	var list struct {
		Inflight []struct {
			Row         int64  `json:"row"`
			Token       int64  `json:"token"`
			UnsettledAt string `json:"unsettledAt"`
		} `json:"inflight"`
	}
	if status != http.StatusOK || json.Unmarshal(body, &list) != nil {
		return fmt.Errorf("list requests in flight: status %d: %s", status, body)
	}
	for _, one := range list.Inflight {
		if one.Token != result.TokenA || one.UnsettledAt == "" {
			continue
		}
		status, body, err := request(ctx, http.MethodPost, fmt.Sprintf("%s/inflight/%d/settle", r.twoAdmin, one.Row),
			map[string]string{"Content-Type": "application/json"}, map[string]string{"operator": "experiment", "reason": "the payout's record shows its claim"})
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("settle row %d: status %d: %s: %w", one.Row, status, body, err)
		}
		result.Settled = true
	}
	return nil
}

// landed are the tokens of the payout's claims in the order in which they took effect, from the history that the database itself keeps.
func (r *replicas) landed(ctx context.Context, payoutID string) ([]int64, error) {
	conn, err := pgx.Connect(ctx, r.databases.pay.URL(r.databases.payName))
	if err != nil {
		return nil, fmt.Errorf("connect to paydb: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, "SELECT token FROM payout_history WHERE source = 'payout' AND payout_id = $1 AND token IS NOT NULL ORDER BY seq", payoutID)
	if err != nil {
		return nil, fmt.Errorf("read the payout's history: %w", err)
	}
	tokens, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("read the payout's history: %w", err)
	}
	return tokens, nil
}

func (r *replicas) readReplicaTruth(ctx context.Context, payoutID string, result *ReplicaResult) error {
	var err error
	if result.Landed, err = r.landed(ctx, payoutID); err != nil {
		return err
	}
	transfers, err := readRailLog(r.railLog, payoutID)
	result.Transfers = len(transfers)
	return err
}
