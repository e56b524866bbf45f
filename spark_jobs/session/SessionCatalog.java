package commitlog;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.catalog.V1Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.delta.catalog.DeltaCatalog;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Utils;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Delta's session catalog, which also knows tables USING commitlog.
 *
 * Spark's own session catalog resolves a table of a data source in Python. It does not do so below a catalog that
 * replaces it, such as Delta's: each query of such a table would fail. The catalog stores the options and the
 * schema of the table; reading it starts the data source with these options.
 *
 * Written for the compiler that Spark ships (Janino), which knows neither a try with resources nor varargs.
 */
public class SessionCatalog extends DeltaCatalog {
    private static final String FORMAT = "commitlog";
    private static final String OPTION = "option."; // prefix of the options among the properties of a table

    public Table loadTable(Identifier name) {
        Table found = super.loadTable(name);
        if (!(found instanceof V1Table)) {
            return found;
        }
        CatalogTable stored = ((V1Table) found).v1Table();
        if (stored.provider().isEmpty() || !isOurs((String) stored.provider().get())) {
            return found;
        }
        Map options = CollectionConverters.asJava((scala.collection.Map) stored.storage().properties());
        Table table = source().getTable(stored.schema(), new Transform[0], options);
        return new LogTable(name.toString(), table, options);
    }

    public Table createTable(Identifier name, Column[] columns, Transform[] partitions, Map properties) {
        if (!isOurs((String) properties.get("provider"))) {
            return super.createTable(name, columns, partitions, properties);
        }
        if (columns.length > 0 || partitions.length > 0) {
            throw new IllegalArgumentException(
                    "a table USING commitlog has the schema of its log: leave out the columns and the partitions");
        }
        Map options = new HashMap();
        for (Iterator entries = properties.entrySet().iterator(); entries.hasNext(); ) {
            Map.Entry entry = (Map.Entry) entries.next();
            String key = (String) entry.getKey();
            if (key.startsWith(OPTION)) {
                options.put(key.substring(OPTION.length()), entry.getValue());
            }
        }
        return super.createTable(
                name, source().inferSchema(new CaseInsensitiveStringMap(options)), partitions, properties);
    }

    public Table alterTable(Identifier name, TableChange[] changes) {
        for (int each = 0; each < changes.length; each++) {
            if (changes[each] instanceof TableChange.ColumnChange && loadTable(name) instanceof LogTable) {
                throw new UnsupportedOperationException(
                        "a table USING commitlog has the schema of its log: its columns cannot be changed");
            }
        }
        return super.alterTable(name, changes);
    }

    public StagedTable stageCreate(Identifier name, TableInfo table)
            throws NoSuchNamespaceException, TableAlreadyExistsException {
        refuse(table);
        return super.stageCreate(name, table);
    }

    public StagedTable stageReplace(Identifier name, TableInfo table)
            throws NoSuchNamespaceException, NoSuchTableException {
        refuse(table);
        return super.stageReplace(name, table);
    }

    public StagedTable stageCreateOrReplace(Identifier name, TableInfo table) throws NoSuchNamespaceException {
        refuse(table);
        return super.stageCreateOrReplace(name, table);
    }

    private static void refuse(TableInfo table) {
        if (isOurs((String) table.properties().get("provider"))) {
            throw new UnsupportedOperationException(
                    "a table USING commitlog is neither created from a query nor replaced: use CREATE TABLE "
                            + "without AS, then INSERT INTO, or DROP TABLE first");
        }
    }

    private static boolean isOurs(String provider) {
        return FORMAT.equalsIgnoreCase(provider);
    }

    private static TableProvider source() {
        Option found = DataSourceV2Utils.getTableProvider(FORMAT, SQLConf.get());
        if (found.isEmpty()) {
            throw new IllegalArgumentException(
                    "the format commitlog is not known in this session: install the package for Spark's Python, or "
                            + "call spark.dataSource.register(CommitlogDataSource)");
        }
        return (TableProvider) found.get();
    }
}
