-- payapp_fenced, the payment-resource in fenced mode: what payapp may do, and the column
-- that payapp must not write. It is a role of its own, so that a resource in plain mode still can't lower a mark.
-- Roles and memberships belong to the whole cluster, hence the care of V5.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'payapp_fenced') THEN
        CREATE ROLE payapp_fenced NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role payapp_fenced is not created: % may not create roles', current_user;
END
$$;

DO $$
BEGIN
    IF (SELECT count(*) = 2 FROM pg_roles WHERE rolname IN ('payapp', 'payapp_fenced'))
       AND NOT pg_has_role('payapp_fenced', 'payapp', 'MEMBER') THEN
        GRANT payapp TO payapp_fenced;
    END IF;
EXCEPTION
    WHEN unique_violation OR duplicate_object THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role payapp is not granted to payapp_fenced: % may not', current_user;
END
$$;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'payapp_fenced') THEN
        GRANT UPDATE (fence) ON account TO payapp_fenced;
    END IF;
END
$$;
