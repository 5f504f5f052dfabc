package lock

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTokenHasExactlyOneSpelling(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Token{"1": 1, "34": 34, "9223372036854775807": math.MaxInt64} {
		got, err := ParseToken(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for _, text := range []string{
		"", "0", "00", "05", "+5", "-5", " 5", "5 ", "5\t", "5, 6", "5 6", "5.0", "5e3", "0x5", "٥", "5\x00",
		"9223372036854775808", "18446744073709551617", "99999999999999999999", "NaN",
	} {
		_, err := ParseToken(text)
		require.ErrorIs(t, err, ErrInvalidToken, "%q", text)
	}
}

func TestTokenSurvivesTheRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		token := Token(rapid.Int64Range(1, math.MaxInt64).Draw(t, "token"))
		got, err := ParseToken(token.String())
		if err != nil || got != token {
			t.Fatalf("%d came back as %d, %v", token, got, err)
		}
	})
}

func TestAcceptedTextIsItsOwnSpelling(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ +\-0-9]{0,21}`).Draw(t, "text")
		if token, err := ParseToken(text); err == nil && token.String() != text {
			t.Fatalf("%q was read as %s", text, token)
		}
	})
}
