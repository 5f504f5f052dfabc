package mark

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeyCacheIsBoundedAndForgetsWhatWasUsedLongestAgo(t *testing.T) {
	t.Parallel()
	c := NewKeyCache(3)
	for i := range 3 {
		c.Put("q", []string{strconv.Itoa(i)}, "key")
	}
	_, ok := c.Get("q", []string{"0"}) // used again
	require.True(t, ok)
	c.Put("q", []string{"3"}, "key")
	for id, want := range map[string]bool{"0": true, "1": false, "2": true, "3": true} {
		_, ok := c.Get("q", []string{id})
		require.Equal(t, want, ok, id)
	}
	require.Equal(t, 3, c.order.Len())
	require.Len(t, c.index, 3)
}

func TestKeyCacheTellsQueriesAndArgumentsApart(t *testing.T) {
	t.Parallel()
	c := NewKeyCache(10)
	c.Put("q", []string{"a", "b"}, "one")
	for _, other := range [][]string{{"ab"}, {"a"}, {"b", "a"}} {
		_, ok := c.Get("q", other)
		require.False(t, ok)
	}
	_, ok := c.Get("p", []string{"a", "b"})
	require.False(t, ok)
	c.Put("q", []string{"a", "b"}, "two")
	key, _ := c.Get("q", []string{"a", "b"})
	require.Equal(t, "one", key, "an immutable result stays")
}
