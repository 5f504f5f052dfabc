package mark

import (
	"container/list"
	"crypto/sha256"
	"strings"
	"sync"
)

// KeyCache remembers what lookups found whose results never change. It is bounded: past its size the result used longest ago goes.
type KeyCache struct {
	mu    sync.Mutex
	size  int
	order *list.List // of cachedKey, newest use first
	index map[cacheID]*list.Element
}

type cachedKey struct {
	id  cacheID
	key string
}

// cacheID identifies a lookup with its arguments. A hash, so that an entry's size doesn't depend on theirs.
type cacheID [sha256.Size]byte

// NewKeyCache returns a cache for at most size results.
func NewKeyCache(size int) *KeyCache {
	return &KeyCache{size: size, order: list.New(), index: map[cacheID]*list.Element{}}
}

func newCacheID(query string, args []string) cacheID {
	return sha256.Sum256([]byte(query + "\x00" + strings.Join(args, "\x00"))) // neither holds a NUL
}

// Get returns what a lookup with these arguments found before.
func (c *KeyCache) Get(query string, args []string) (key string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.index[newCacheID(query, args)]
	if !ok {
		return "", false
	}
	c.order.MoveToFront(element)
	return element.Value.(cachedKey).key, true // only Put adds
}

// Put remembers a result.
func (c *KeyCache) Put(query string, args []string, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := newCacheID(query, args)
	if _, known := c.index[id]; known {
		return // it never changes
	}
	c.index[id] = c.order.PushFront(cachedKey{id: id, key: key})
	if c.order.Len() > c.size {
		oldest := c.order.Back()
		c.order.Remove(oldest)
		delete(c.index, oldest.Value.(cachedKey).id) // only Put adds
	}
}
