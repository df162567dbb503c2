#!/bin/sh
# history-branch.sh load|save: copy nightly results from or to the branch nightly-history of origin.
# Each nightly run is a small file with a unique name, so two runners never conflict.
set -e
results=${RESULTS:-results} branch=nightly-history
mkdir -p "$results/nights"
tree=$(mktemp -d)
trap 'git worktree remove --force "$tree"' EXIT
if git fetch -q origin "$branch"; then
    git worktree add -q --detach "$tree" FETCH_HEAD
else
    git worktree add -q --detach "$tree"
    (cd "$tree" && git checkout -q --orphan "$branch-first" && git rm -rfq --cached . && git clean -dfxq)
fi
if [ "$1" = load ]; then
    cp -n "$tree"/nights/*.json "$results/nights/" 2>/dev/null || true
    exit
fi
mkdir -p "$tree/nights"
cp -n "$results"/nights/*.json "$tree/nights/" 2>/dev/null || true
cd "$tree"
git add nights
git diff --cached --quiet && exit
git -c user.name=scaleproof -c user.email=scaleproof@localhost commit -qm "Nights"
for _ in 1 2 3 4 5; do
    git push -q origin "HEAD:refs/heads/$branch" && exit
    git fetch -q origin "$branch" && git -c user.name=scaleproof -c user.email=scaleproof@localhost rebase -q FETCH_HEAD
done
exit 1
