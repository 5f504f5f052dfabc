package pgmark_test

import (
	"maps"
	"testing"
	"time"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres/statementtest"
	"fenceline/migrations"
	"fenceline/sidecar/mark/pgmark"
)

const (
	lifeA  = "00000000-0000-4000-8000-00000000000a" // alive
	lifeB  = "00000000-0000-4000-8000-00000000000b" // alive, and silent for an hour
	lifeC  = "00000000-0000-4000-8000-00000000000c" // ended a week ago
	noLife = "00000000-0000-4000-8000-00000000000d"
	keyOne = "00000000-0000-4000-8000-000000000101"

	lives = `INSERT INTO fence.sidecar (life, id, guards, heartbeat_at, ended_at) VALUES ('` + lifeA + `', 'a', '{g}', now(), NULL),
('` + lifeB + `', 'b', '{g}', now() - interval '1 h', NULL), ('` + lifeC + `', 'c', '{g}', now() - interval '8 d', now() - interval '7 d');`
	rowOf = lives + `INSERT INTO fence.inflight (guard, key, token, life, route, admitted_at, unsettled_at) OVERRIDING SYSTEM VALUE VALUES `
	// Requests in flight: one, and two, of life A, unsettled for an hour.
	oneFlight = rowOf + `('g', 'k', 5, '` + lifeA + `', 'r', now() - interval '1 h', now() - interval '1 h');`
	twoFlight = oneFlight + `INSERT INTO fence.inflight (guard, key, token, life, route, admitted_at, unsettled_at) VALUES ('g', 'k', 6, '` + lifeA + `', 'r', now() - interval '1 h', now() - interval '1 h');`
	ofC       = `UPDATE fence.inflight SET life = '` + lifeC + `';`
	underWay  = `UPDATE fence.inflight SET unsettled_at = NULL;`
	twoSilent = `UPDATE fence.sidecar SET heartbeat_at = now() - interval '1 h';`
	twoEnded  = `UPDATE fence.sidecar SET ended_at = now() - interval '7 d' WHERE life <> '` + lifeA + `';`
	claimed   = lives + `INSERT INTO fence.claim (guard, life, epoch, unsettled_after) VALUES ('g', '` + lifeA + `', 1, '30 s');`
	resource  = `CREATE SCHEMA s; CREATE TABLE s.t (k UUID PRIMARY KEY, n BIGINT NOT NULL, u TIMESTAMPTZ NOT NULL DEFAULT now()); GRANT USAGE ON SCHEMA s TO fence_sidecar; GRANT ALL ON s.t TO fence_sidecar;`
)

type list = []statementtest.Case

// everyRow is a statement's cases of no row, one and two, by what the owner sets up.
func everyRow(none, one, two string, args ...any) list {
	return list{{Setup: none, Args: args, Rows: 0}, {Setup: one, Args: args, Rows: 1}, {Setup: two, Args: args, Rows: 2}}
}

func always(setup string, args ...any) list { return list{{Setup: setup, Args: args, Rows: 1}} }

func rejections(n int) []any {
	fill := func(text string) (out []string) {
		for range n {
			out = append(out, text)
		}
		return out
	}
	var times []time.Time
	var tokens []int64
	for range n {
		times, tokens = append(times, time.Now()), append(tokens, 5)
	}
	return []any{fill("g"), fill("k"), fill("r"), fill("enforce"), tokens, tokens, fill("o"), fill("t"), times, "s"}
}

func lifeCases() map[string]list {
	return map[string]list{
		"oneAtATime":      always(""),
		"declareDead":     everyRow("", lives, lives+twoSilent, 5*time.Second, noLife),
		"unsettleDead":    everyRow(twoFlight+underWay, oneFlight+underWay+ofC, twoFlight+underWay+ofC),
		"sameID":          always(lives, "a"),
		"settleWithUs":    everyRow(twoFlight, oneFlight+ofC, twoFlight+ofC, "c", []string{"g"}),
		"otherDefinition": always(lives, "g", "d"),
		"defineGuard": {
			{Setup: `INSERT INTO fence.guard VALUES ('g', 'd')`, Args: []any{"g", "d"}, Rows: 0},
			{Setup: `INSERT INTO fence.guard VALUES ('g', 'other')`, Args: []any{"g", "d"}, Rows: 1},
			{Args: []any{"g", "d"}, Rows: 1},
		},
		"forgetLives": append(everyRow("", lives, lives+twoEnded), statementtest.Case{Setup: oneFlight + ofC, Rows: 0},
			statementtest.Case{Setup: claimed + "UPDATE fence.claim SET life = '" + lifeC + "'", Rows: 0}),
		"insertLife":  always("", noLife, "n", []string{"g"}),
		"beat":        {{Setup: lives, Args: []any{lifeC}, Rows: 0}, {Setup: lives, Args: []any{lifeA}, Rows: 1}},
		"endLife":     {{Setup: lives, Args: []any{lifeC}, Rows: 0}, {Setup: lives, Args: []any{lifeA}, Rows: 1}},
		"release":     everyRow(twoFlight+underWay, oneFlight, twoFlight, "g", 30*time.Second),
		"ownRows":     everyRow(twoFlight+ofC, oneFlight, twoFlight, lifeA, 30*time.Second),
		"liveServers": always(lives, "g"),
		"claimShared": always("", "g"),
		"claimAlone":  always("", "g"),
		"readClaim":   {{Args: []any{"g"}, Rows: 0}, {Setup: claimed, Args: []any{"g"}, Rows: 1}},
		"takeClaim":   append(always(lives, "g", lifeA, 30*time.Second), statementtest.Case{Setup: claimed, Args: []any{"g", lifeB, 30 * time.Second}, Rows: 1}),
		"settleClaim": {{Setup: claimed, Args: []any{"g", lifeB}, Rows: 0}, {Setup: claimed, Args: []any{"g", lifeA}, Rows: 1}},
		"dropClaim":   {{Args: []any{"g"}, Rows: 0}, {Setup: claimed, Args: []any{"g"}, Rows: 1}},
		"holdsClaim":  append(always(claimed, "g", lifeA), statementtest.Case{Args: []any{"g", lifeA}, Rows: 1}),
	}
}

func registerCases() map[string]list {
	keys := []any{[]int32{0, 1}, []string{"k", "l"}, []bool{false, true}, "g"}
	return map[string]list{
		"describe":       {{Args: []any{"fence.mark", "nothing"}, Rows: 0}, {Args: []any{"fence.mark", "token"}, Rows: 1}},
		"readCommitted":  {{Rows: 0}},
		"lockKeys":       always("", keys...),
		"lockKeyWaiting": always("", []int32{0}, []string{"k"}, []bool{false}, "g"),
		"removeReleased": everyRow(twoFlight+underWay, oneFlight, twoFlight, "g", "k", int64(9), 30*time.Second),
		"lookOwn":        always("", int64(1)),
		"lookOlder":      everyRow("", oneFlight, twoFlight, "g", "k", int64(9)),
		"notDurable":     always("", "500ms"),
		"removeRows":     {{Args: []any{[]int64{}}, Rows: 0}, {Setup: oneFlight + renumber, Args: []any{[]int64{905, 906}}, Rows: 1}, {Setup: twoFlight + renumber, Args: []any{[]int64{905, 906}}, Rows: 2}},
		"unsettleRow":    {{Setup: twoFlight + renumber, Args: []any{[]int64{905}}, Rows: 0}, {Setup: twoFlight + renumber + underWay, Args: []any{[]int64{905}}, Rows: 1}, {Setup: twoFlight + renumber + underWay, Args: []any{[]int64{905, 906}}, Rows: 2}},
		"hintWaiting": {
			{Setup: twoFlight, Args: []any{[]string{"g"}, []string{"k"}, []int64{5}, lifeA}, Rows: 0}, // nobody else waits
			{Setup: twoFlight, Args: []any{[]string{"g"}, []string{"k"}, []int64{5}, lifeB}, Rows: 1},
			{
				Setup: twoFlight + `INSERT INTO fence.inflight (guard, key, token, life, route) VALUES ('g', 'l', 9, '` + lifeA + `', 'r');`,
				Args:  []any{[]string{"g", "g"}, []string{"k", "l"}, []int64{5, 5}, lifeB}, Rows: 2,
			},
		},
		"standing":         everyRow("", oneFlight, twoFlight, "g", 10),
		"settleByOperator": everyRow(twoFlight+underWay, oneFlight, twoFlight, int64(0), lifeA, "carol", "because"),
		"recordReset":      always("", "g", "k", int64(5), int64(4), "carol", "because"),
		"recordSettled":    always("", "g", "k", int64(5), int64(4), "carol", "because"),
		"appendRejections": {{Args: rejections(0), Rows: 0}, {Args: rejections(1), Rows: 1}, {Args: rejections(2), Rows: 2}},
	}
}

// renumber gives the rows numbers that are known: 900 and the token.
const renumber = `UPDATE fence.inflight SET id = DEFAULT; ALTER TABLE fence.inflight ALTER id DROP IDENTITY; UPDATE fence.inflight SET id = 900 + token;`

// guardCases are of the statements that are made for a guard. key and other are keys of its type; put makes marks of 5 for them.
func guardCases(name, key, other, put, putOther string, life string) map[string]list {
	token := func(n int64) []any { return []any{key, n, int64(1000)} }
	group := []any{[]int32{0, 1}, []string{key, other}, []bool{false, false}, []int64{6, 6}, []int64{6, 6}, []bool{true, true}, []string{"r", "r"}, []string{"o", "o"}, int64(1000), "g", life}
	rows := []any{[]int32{0, 1}, []string{key, other}, []bool{false, false}, []int64{6, 6}}
	const locked = `SELECT set_config('fence.got', '{0,1}', true), set_config('fence.free', '{0,1}', true);`
	onlyFirst := `SELECT set_config('fence.got', '{0}', true), set_config('fence.free', '{0}', true);`
	nothing := `SELECT set_config('fence.got', '{}', true), set_config('fence.free', '{}', true);`
	look := func(n int) []any {
		return []any{[]int32{0, 1}[:n], []string{key, other}[:n], "g", []int64{6, 6}[:n], life}
	}
	asking := func(n int, more ...any) []any {
		return append([]any{[]int32{0, 1}[:n], []string{key, other}[:n], []int64{6, 6}[:n], []bool{true, true}[:n]}, more...)
	}
	return map[string]list{
		name + ".admit.free": always(put+locked, asking(2)...),
		name + ".admit.raise": {
			{Setup: put + locked, Args: asking(0, int64(1000), "g"), Rows: 0},
			{Setup: put + locked, Args: asking(1, int64(1000), "g"), Rows: 1},
			{Setup: put + nothing, Args: asking(2, int64(1000), "g"), Rows: 2}, // one for each that asks, admitted or not
		},
		name + ".newer":           {{Setup: put, Args: token(5), Rows: 0}, {Setup: put, Args: token(6), Rows: 1}},
		name + ".newerOrSame":     {{Setup: put, Args: token(4), Rows: 0}, {Setup: put, Args: token(5), Rows: 1}},
		name + ".raise":           {{Setup: put, Args: token(5), Rows: 0}, {Setup: put, Args: token(6), Rows: 1}},
		name + ".read":            {{Setup: resource, Args: []any{key}, Rows: 0}, {Setup: put, Args: []any{key}, Rows: 1}},
		name + ".effects.free":    always(put+locked, rows...),
		name + ".effects.waiting": always(put+locked, rows...),
		name + ".effects.raise": {
			{Setup: put + putOther + nothing, Args: group, Rows: 0}, {Setup: put + putOther + onlyFirst, Args: group, Rows: 1}, {Setup: put + putOther + locked, Args: group, Rows: 2},
		},
		name + ".effects.look": {{Setup: put, Args: look(0), Rows: 0}, {Setup: put, Args: look(1), Rows: 1}, {Setup: put, Args: look(2), Rows: 2}},
		name + ".effects.see":  {{Setup: resource, Args: []any{key}, Rows: 0}, {Setup: put, Args: []any{key}, Rows: 1}},
	}
}

// Every statement gives as many rows as it is registered with, under the sidecar's role.
func TestStatementsGiveTheRowsThatTheyAreRegisteredWith(t *testing.T) {
	t.Parallel()
	all := map[string]list{"pruneRejections": pruneCases()}
	for _, more := range []map[string]list{
		lifeCases(), registerCases(),
		guardCases("own", "k", "l", lives+`INSERT INTO fence.mark VALUES ('own', 'k', 5);`, `INSERT INTO fence.mark VALUES ('own', 'l', 5);`, lifeA),
		guardCases("exclusive", "k", "l", claimed+`INSERT INTO fence.mark VALUES ('exclusive', 'k', 5);`, `INSERT INTO fence.mark VALUES ('exclusive', 'l', 5);`, lifeA),
		guardCases("table", keyOne, noLife, resource+lives+`INSERT INTO s.t VALUES ('`+keyOne+`', 5);`, `INSERT INTO s.t VALUES ('`+noLife+`', 5);`, lifeA),
	} {
		maps.Copy(all, more)
	}
	for _, cases := range all {
		for i := range cases {
			cases[i].Role = "fence_sidecar"
		}
	}
	all["readCommitted"][0].Role = "" // it must be the first of its transaction
	statementtest.Run(t, pgtest.Connect(t, pgtest.Database(t, migrations.Fence())), pgmark.Statements(), all)
}

func pruneCases() list {
	const old = `INSERT INTO fence.rejection (guard, key, route, mode, presented_token, highest_token, sidecar_id, rejected_at) VALUES ('g', 'k', 'r', 'enforce', 1, 2, 's', now() - interval '1 y');`
	return everyRow("", old, old+old, 24*time.Hour)
}
