package pgstore

import "fenceline/internal/postgres"

// Statements are all that this store sends, with the number of rows that each gives.
func Statements() []postgres.Statement {
	return []postgres.Statement{
		{Name: "checkRole", SQL: checkRole, Rows: postgres.One},
		{Name: "heartbeat", SQL: heartbeat, Rows: postgres.ZeroOrOne},
		{Name: "readEntry", SQL: readEntry, Rows: postgres.ZeroOrOne},
		{Name: "openSession", SQL: openSession, Rows: postgres.One},
		{Name: "readSession", SQL: readSession, Rows: postgres.ZeroOrOne},
		{Name: "countSession", SQL: countSession, Rows: postgres.One},
		{Name: "holdSession", SQL: holdSession, Rows: postgres.ZeroOrOne},
		{Name: "grantsOfSession", SQL: grantsOfSession, Rows: postgres.Many},
		{Name: "closeSession", SQL: closeSession, Rows: postgres.ZeroOrOne},
		{Name: "orderDraws", SQL: orderDraws, Rows: postgres.One},
		{Name: "demandSource", SQL: demandSource, Rows: postgres.One},
		{Name: "holdEntry", SQL: holdEntry, Rows: postgres.ZeroOrOne},
		{Name: "lockEntry", SQL: lockEntry, Rows: postgres.ZeroOrOne},
		{Name: "release", SQL: release, Rows: postgres.ZeroOrOne},
		{Name: "recordRevocation", SQL: recordRevocation, Rows: postgres.One},
		{Name: "drawToken", SQL: drawToken, Rows: postgres.One},
		{Name: "reapEntries", SQL: reapEntries, Rows: postgres.Many},
		{Name: "listDoomed", SQL: listDoomed, Rows: postgres.Many},
		{Name: "reapSessions", SQL: reapSessions, Rows: postgres.Many},
		{Name: "countHeld", SQL: countHeld, Rows: postgres.One},
		{Name: "sendNotice", SQL: sendNotice, Rows: postgres.Many},
		{Name: "listGrants", SQL: listGrants, Rows: postgres.Many},
		{Name: "listRevocations", SQL: listRevocations, Rows: postgres.Many},
		{Name: "adoptSource", SQL: adoptSource, Rows: postgres.ZeroOrOne},
		{Name: "highestToken", SQL: highestToken, Rows: postgres.One},
		{Name: "fastForward", SQL: fastForward, Rows: postgres.One},
		{Name: "changeLocks", SQL: changeLocks, Rows: postgres.Many},
		{Name: "renewLocks", SQL: renewLocks, Rows: postgres.Many},
	}
}
