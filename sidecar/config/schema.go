package config

import "strings"

// schema lists every key that a configuration can have; "[]" stands for the elements of a list, "*" for a name that the user chooses. A key that
// ends in "!" belongs to a part that isn't in this version: it is known, and refused by name.
const schema = `
version
id
listen
listen_tls.certificate_file
listen_tls.key_file
listen_tls.client_ca_file
admin.listen
admin.token_file
upstream.url
upstream.allow_remote
upstream.connect_timeout
upstream.response_timeout
upstream.idle_timeout
upstream.readiness
upstream.tls.ca_file
upstream.tls.certificate_file
upstream.tls.key_file
upstream.tls.server_name
store.postgres.url
store.postgres.url_file
store.postgres.listen_url
store.postgres.max_conns
store.postgres.timeout
store.postgres.query_mode
store.file.path
store.file.timeout
token.header
token.owner_header
token.max_jump
token.grant_keys_file!
headers.allow
forwarded.trusted_peers
guards[].name
guards[].lock_key
guards[].mark.table
guards[].mark.key
guards[].mark.key_type
guards[].mark.token
guards[].mark.updated_at
guards[].mark.missing
guards[].advance
guards[].order
guards[].ownership
guards[].unsettled.after
guards[].unsettled.then
guards[].unsettled_status
guards[].restarts_with
routes[].name
routes[].match.methods
routes[].match.path
routes[].pass
routes[].guard
routes[].admit
routes[].key.path
routes[].key.header
routes[].key.query
routes[].key.json
routes[].key.lookup.sql
routes[].key.lookup.params.*.path
routes[].key.lookup.params.*.header
routes[].key.lookup.params.*.query
routes[].key.lookup.params.*.json
routes[].key.lookup.cache
routes[].mode
routes[].stream
routes[].on_fenced.sql
routes[].on_fenced.params.*.path
routes[].on_fenced.params.*.header
routes[].on_fenced.params.*.query
routes[].on_fenced.params.*.json
routes[].overlaps
unmatched
limits.body
limits.response
limits.head
limits.connections
limits.in_flight
limits.wait
shutdown.delay
shutdown.grace
rejections.keep
tracing.endpoint
`

// keySchema is the same as a tree.
type keySchema struct {
	children    map[string]*keySchema
	unsupported bool
}

func newSchema() *keySchema {
	root := &keySchema{children: map[string]*keySchema{}}
	for line := range strings.FieldsSeq(schema) {
		path, unsupported := strings.CutSuffix(line, "!")
		at := root
		for part := range strings.SplitSeq(strings.ReplaceAll(path, "[]", ".[]"), ".") {
			next := at.children[part]
			if next == nil {
				next = &keySchema{children: map[string]*keySchema{}}
				at.children[part] = next
			}
			at = next
		}
		at.unsupported = unsupported
	}
	return root
}

// check notes every key that the schema doesn't have, with the nearest one that it has, and every one that isn't in this version.
func (s *keySchema) check(n *node, path string, faults *Faults) {
	if n == nil {
		return
	}
	for i, item := range n.items {
		if child := s.children["[]"]; child != nil {
			child.check(item, path+"["+itoa(i)+"]", faults)
		}
	}
	for _, f := range n.fields {
		child := s.children[f.name]
		if child == nil {
			child = s.children["*"]
		}
		where := join(path, f.name)
		switch {
		case child == nil && len(s.children) > 0:
			faults.add(f.at, where, "unknown key"+s.suggest(f.name))
		case child != nil && child.unsupported:
			faults.addUnsupported(f.at, where, "; remove the key")
		case child != nil:
			child.check(f.value, where, faults)
		}
	}
}

// suggest names the known key that is nearest to a mistyped one.
func (s *keySchema) suggest(name string) string {
	best, bestDistance := "", 4
	for known := range s.children {
		if known == "[]" || known == "*" {
			continue
		}
		if d := distance(strings.ToLower(name), known); d < min(bestDistance, len(known)) || d == bestDistance && known < best {
			best, bestDistance = known, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is Levenshtein's: how many letters must be added, removed or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
