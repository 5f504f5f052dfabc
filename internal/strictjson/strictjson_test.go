package strictjson

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type request struct {
	Name  string `json:"name"`
	Count *int64 `json:"count,omitempty"`
}

func TestOneObjectWithKnownMembersIsRead(t *testing.T) {
	t.Parallel()
	var r request
	require.NoError(t, Decode([]byte(" {\"name\":\"a\",\"count\":9007199254740993}\n"), &r))
	require.Equal(t, "a", r.Name)
	require.Equal(t, int64(9007199254740993), *r.Count)
}

func TestEveryOtherBodyIsRefusedWithAReason(t *testing.T) {
	t.Parallel()
	for body, reason := range map[string]string{
		"":                              "empty",
		"  ":                            "empty",
		"null":                          "isn't a JSON object",
		"[]":                            "isn't a JSON object",
		"hello":                         "isn't a JSON object",
		`{"name":`:                      "isn't one valid JSON object",
		`{"name":"a"} {}`:               "isn't one valid JSON object",
		`{"name":"a"}x`:                 "isn't one valid JSON object",
		`{"name":"a","name":"b"}`:       "twice",
		`{"name":"a","na\u006de":""}`:   "twice",
		`{"colour":"a"}`:                `unknown member "colour"`,
		`{"Name":"a"}`:                  `unknown member "Name"`,
		`{"name":7}`:                    `member "name": want a string`,
		`{"count":"7"}`:                 `member "count": want a whole number`,
		`{"count":7.5}`:                 `member "count": want a whole number`,
		`{"count":9223372036854775808}`: `member "count": want a whole number`,
		"{\"name\":\"\xff\"}":           "isn't one valid JSON object",
	} {
		var r request
		require.ErrorContains(t, Decode([]byte(body), &r), reason, "%q", body)
	}
}
