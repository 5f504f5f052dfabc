package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMarksAreTheSidecarsOwnWhereNoTableIsNamed(t *testing.T) {
	t.Parallel()
	for _, mark := range []string{"{ key_type: uuid }", "{ table: fence.mark, key_type: uuid }", "{ key_type: uuid, missing: insert }"} {
		cfg, err := load(strings.Replace(minimal, "{ table: account, key: account_id, key_type: uuid, token: fence }", mark, 1))
		require.NoError(t, err)
		require.True(t, cfg.Guards[0].Mark.Own())
		require.Equal(t, Mark{KeyType: KeyUUID, Missing: MissingInsert}, cfg.Guards[0].Mark, mark)
	}
	cfg, err := load(minimal)
	require.NoError(t, err)
	require.False(t, cfg.Guards[0].Mark.Own())
	require.Equal(t, MissingReject, cfg.Guards[0].Mark.Missing, "a table of yours says which keys there are")
}

const fileStore = "  file: { path: /var/lib/sidecar/marks.db }\n"

func TestMarksInAFileNeedNeitherTableNorLookup(t *testing.T) {
	t.Parallel()
	text := strings.Replace(minimal, "  postgres:\n    url: postgres://u:hunter2@127.0.0.1/paydb\n", fileStore, 1)
	own := strings.Replace(text, "table: account, key: account_id, key_type: uuid, token: fence", "key_type: uuid", 1)
	cfg, err := load(own)
	require.NoError(t, err)
	require.Equal(t, File{Path: "/var/lib/sidecar/marks.db", Timeout: defaultStoreTimeout}, cfg.Store.File)
	require.Equal(t, defaultStoreTimeout, cfg.Store.Timeout())
	for _, c := range []struct{ text, key, says string }{
		{text, "guards[0].mark.table", "have no table"},
		{strings.Replace(own, "key: { path: account_id }", "key: { lookup: { sql: SELECT @account_id } }", 1), "routes[0].key.lookup", "answers no queries"},
		{strings.Replace(minimal, "store:\n", "store:\n"+fileStore, 1), "store.file", "one place"},
		{strings.Replace(own, "path: /var/lib/sidecar/marks.db", "timeout: 1s", 1), "store.file.path", "missing"},
	} {
		faults := faultsOf(t, c.text)
		require.Len(t, faults, 1)
		require.Equal(t, c.key, faults[0].Key)
		require.Contains(t, faults[0].Message, c.says)
	}
}
