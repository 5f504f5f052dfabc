package pgmark

import (
	"fenceline/internal/postgres"
	"fenceline/sidecar/config"
)

// Contract is the version of the sidecar's own tables that this package works with.
func Contract() postgres.Contract { return ownContract }

// Statements are all that this store sends. Those on marks are made for each guard, so they stand here as they are for three: one whose marks are the
// sidecar's own, one that it owns alone, and one whose marks are in a resource's table with everything that a table can have.
func Statements() []postgres.Statement {
	all := []postgres.Statement{
		{Name: "describe", SQL: describe, Rows: postgres.ZeroOrOne},
		{Name: "readCommitted", SQL: readCommitted, Rows: postgres.Effect},
		{Name: "lockKeys", SQL: lockKeys, Rows: postgres.One},
		{Name: "lockKeyWaiting", SQL: lockKeyWaiting, Rows: postgres.One},
		{Name: "removeReleased", SQL: removeReleased, Rows: postgres.Many},
		{Name: "lookOwn", SQL: lookOwn, Rows: postgres.One},
		{Name: "lookOlder", SQL: lookOlder, Rows: postgres.Many},
		{Name: "notDurable", SQL: notDurable, Rows: postgres.One},
		{Name: "removeRows", SQL: removeRows, Rows: postgres.Many},
		{Name: "unsettleRow", SQL: unsettleRow, Rows: postgres.Many},
		{Name: "hintWaiting", SQL: hintWaiting, Rows: postgres.Many},
		{Name: "oneAtATime", SQL: oneAtATime, Rows: postgres.One},
		{Name: "declareDead", SQL: declareDead, Rows: postgres.Many},
		{Name: "unsettleDead", SQL: unsettleDead, Rows: postgres.Many},
		{Name: "sameID", SQL: sameID, Rows: postgres.One},
		{Name: "settleWithUs", SQL: settleWithUs, Rows: postgres.Many},
		{Name: "otherDefinition", SQL: otherDefinition, Rows: postgres.One},
		{Name: "defineGuard", SQL: defineGuard, Rows: postgres.ZeroOrOne},
		{Name: "forgetLives", SQL: forgetLives, Rows: postgres.Many},
		{Name: "insertLife", SQL: insertLife, Rows: postgres.One},
		{Name: "beat", SQL: beat, Rows: postgres.ZeroOrOne},
		{Name: "release", SQL: release, Rows: postgres.Many},
		{Name: "ownRows", SQL: ownRows, Rows: postgres.Many},
		{Name: "endLife", SQL: endLife, Rows: postgres.ZeroOrOne},
		{Name: "standing", SQL: standing, Rows: postgres.Many},
		{Name: "settleByOperator", SQL: settleByOperator, Rows: postgres.Many},
		{Name: "claimShared", SQL: claimShared, Rows: postgres.One},
		{Name: "claimAlone", SQL: claimAlone, Rows: postgres.One},
		{Name: "readClaim", SQL: readClaim, Rows: postgres.ZeroOrOne},
		{Name: "takeClaim", SQL: takeClaim, Rows: postgres.One},
		{Name: "settleClaim", SQL: settleClaim, Rows: postgres.ZeroOrOne},
		{Name: "dropClaim", SQL: dropClaim, Rows: postgres.ZeroOrOne},
		{Name: "holdsClaim", SQL: holdsClaim, Rows: postgres.One},
		{Name: "recordSettled", SQL: recordSettled, Rows: postgres.One},
		{Name: "liveServers", SQL: liveServers, Rows: postgres.One},
		{Name: "recordReset", SQL: recordReset, Rows: postgres.One},
		{Name: "appendRejections", SQL: appendRejections, Rows: postgres.Many},
		{Name: "pruneRejections", SQL: pruneRejections, Rows: postgres.Many},
	}
	for _, g := range []config.Guard{
		{Name: "own", Mark: config.Mark{KeyType: config.KeyText, Missing: config.MissingInsert}},
		{
			Name: "exclusive", Mark: config.Mark{KeyType: config.KeyText, Missing: config.MissingInsert}, Order: config.OrderEffects, Advance: config.AdvanceSidecar,
			Effects: config.Effects{Ownership: config.OwnershipExclusive},
		},
		{Name: "table", Mark: config.Mark{Table: []string{"s", "t"}, Key: "k", KeyType: config.KeyUUID, Token: "n", UpdatedAt: "u", Missing: config.MissingInsert}},
	} {
		marks, effects, admit := build(g), buildEffects(g), buildAdmit(g)
		one, many := postgres.ZeroOrOne, postgres.Many
		for _, s := range []postgres.Statement{
			{Name: "newer", SQL: marks.newer, Rows: one},
			{Name: "newerOrSame", SQL: marks.newerOrSame, Rows: one},
			{Name: "raise", SQL: marks.raise, Rows: one},
			{Name: "read", SQL: marks.read, Rows: one},
			{Name: "admit.free", SQL: admit.free, Rows: postgres.One},
			{Name: "admit.raise", SQL: admit.raise, Rows: many},
			{Name: "effects.free", SQL: effects.free, Rows: postgres.One},
			{Name: "effects.waiting", SQL: effects.waiting, Rows: postgres.One},
			{Name: "effects.raise", SQL: effects.raise, Rows: many},
			{Name: "effects.look", SQL: effects.look, Rows: many},
			{Name: "effects.see", SQL: effects.see, Rows: one},
		} {
			s.Name = g.Name + "." + s.Name
			all = append(all, s)
		}
	}
	return all
}
