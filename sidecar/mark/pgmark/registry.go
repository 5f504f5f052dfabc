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
		{Name: "describe", SQL: describe},
		{Name: "readCommitted", SQL: readCommitted},
		{Name: "lockKeys", SQL: lockKeys},
		{Name: "lockKeyWaiting", SQL: lockKeyWaiting},
		{Name: "removeReleased", SQL: removeReleased},
		{Name: "lookOwn", SQL: lookOwn},
		{Name: "lookOlder", SQL: lookOlder},
		{Name: "notDurable", SQL: notDurable},
		{Name: "removeRows", SQL: removeRows},
		{Name: "unsettleRow", SQL: unsettleRow},
		{Name: "hintWaiting", SQL: hintWaiting},
		{Name: "oneAtATime", SQL: oneAtATime},
		{Name: "declareDead", SQL: declareDead},
		{Name: "unsettleDead", SQL: unsettleDead},
		{Name: "sameID", SQL: sameID},
		{Name: "settleWithUs", SQL: settleWithUs},
		{Name: "otherDefinition", SQL: otherDefinition},
		{Name: "defineGuard", SQL: defineGuard},
		{Name: "forgetLives", SQL: forgetLives},
		{Name: "insertLife", SQL: insertLife},
		{Name: "beat", SQL: beat},
		{Name: "release", SQL: release},
		{Name: "ownRows", SQL: ownRows},
		{Name: "endLife", SQL: endLife},
		{Name: "standing", SQL: standing},
		{Name: "settleByOperator", SQL: settleByOperator},
		{Name: "claimShared", SQL: claimShared},
		{Name: "claimAlone", SQL: claimAlone},
		{Name: "readClaim", SQL: readClaim},
		{Name: "takeClaim", SQL: takeClaim},
		{Name: "settleClaim", SQL: settleClaim},
		{Name: "dropClaim", SQL: dropClaim},
		{Name: "holdsClaim", SQL: holdsClaim},
		{Name: "recordSettled", SQL: recordSettled},
		{Name: "liveServers", SQL: liveServers},
		{Name: "recordReset", SQL: recordReset},
		{Name: "appendRejections", SQL: appendRejections},
		{Name: "pruneRejections", SQL: pruneRejections},
	}
	for _, g := range []config.Guard{
		{Name: "own", Mark: config.Mark{KeyType: config.KeyText, Missing: config.MissingInsert}},
		{
			Name: "exclusive", Mark: config.Mark{KeyType: config.KeyText, Missing: config.MissingInsert}, Order: config.OrderEffects, Advance: config.AdvanceSidecar,
			Effects: config.Effects{Ownership: config.OwnershipExclusive},
		},
		{Name: "table", Mark: config.Mark{Table: []string{"s", "t"}, Key: "k", KeyType: config.KeyUUID, Token: "n", UpdatedAt: "u", Missing: config.MissingInsert}},
	} {
		marks, effects := build(g), buildEffects(g)
		for name, sql := range map[string]string{
			"newer": marks.newer, "newerOrSame": marks.newerOrSame, "raise": marks.raise, "read": marks.read,
			"effects.free": effects.free, "effects.waiting": effects.waiting, "effects.raise": effects.raise, "effects.look": effects.look, "effects.see": effects.see,
		} {
			all = append(all, postgres.Statement{Name: g.Name + "." + name, SQL: sql})
		}
	}
	return all
}
