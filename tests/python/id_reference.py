"""What ExactMapping does, with a dict: the judge of test_id_transform.py and its program."""

from collections import Counter, defaultdict

_WORD = (1 << 64) - 1


def mixed(number, place=0):
    """splitmix64 of a 64-bit number."""
    word = (number + (place + 1) * 0x9E3779B97F4A7C15) & _WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
    return word ^ (word >> 31)


class Reference:
    """One table, no ranks."""

    def __init__(self, n_rows, n_buckets, default_row=0):
        self.n_rows, self.n_buckets, self.default_row = n_rows, n_buckets, default_row
        self.row_of, self.step = {}, 0
        self.ids, self.last_used, self.counts = [0] * n_rows, [-1] * n_rows, [0] * n_rows
        self.reassigned = []

    def bucket_of(self, number):
        return (mixed(number) >> 32) * self.n_buckets >> 32

    def rows_of(self, bucket):
        length, longer = divmod(self.n_rows, self.n_buckets)
        begin = bucket * length + min(bucket, longer)
        return [r for r in range(begin, begin + length + (bucket < longer)) if r != self.default_row]

    def find(self, numbers):
        return [self.row_of.get(number, self.default_row) for number in numbers]

    def transform(self, numbers):
        """`numbers`: of all ranks together."""
        counts, by_bucket = Counter(numbers), defaultdict(list)
        for number in sorted(counts):
            by_bucket[self.bucket_of(number)].append(number)
        for bucket, members in by_bucket.items():
            assert len(members) <= len(self.rows_of(bucket)), "a bucket of the test is too small"
        self.reassigned = []
        for bucket, members in by_bucket.items():
            kept = {self.row_of[number] for number in members if number in self.row_of}
            free = sorted((self.last_used[row], row) for row in self.rows_of(bucket) if row not in kept)
            for number, (age, row) in zip([m for m in members if m not in self.row_of], free, strict=False):
                if age >= 0:
                    del self.row_of[self.ids[row]]
                    self.reassigned.append((row, number))
                self.row_of[number], self.ids[row], self.counts[row] = row, number, 0
        for number, n in counts.items():
            self.last_used[self.row_of[number]] = self.step
            self.counts[self.row_of[number]] += n
        self.step += 1
        return self.find(numbers)
